package config

import (
	"crypto/tls"
	"net"
	"strings"
)

// Dnstap is `dnstap [listen] ENDPOINT [full] [WRITEBUFFER] [QUEUE] { … }`. A block may have
// several. Without its Next it is comparable.
type Dnstap struct {
	// Listen says that collectors connect to the agent.
	Listen bool
	// Network is "unix", "tcp" or "tls"; Address is the address to dial, or to listen on.
	Network, Address string
	// Full includes the packets in the messages.
	Full bool
	// WriteBuffer is the size of a TCP connection's send buffer, in bytes; Queue is the
	// maximum number of messages that wait for a collector.
	WriteBuffer, Queue int
	// Identity and Version describe the server in the messages; "" is its host name and its
	// version.
	Identity, Version string
	// Extra is a text in each message, with the placeholders of log.
	Extra string
	// SkipVerify accepts any certificate.
	SkipVerify bool
	// TLS is the certificate of a listener, if Network is tls.
	TLS TLSServer
	// Next is the next dnstap of the same block, nil for the last.
	Next *Dnstap
}

func (*Dnstap) needsAgent() bool { return true }

const (
	// DnstapQueue is the unit of the queue, in messages, and dnstapBuffer the unit of the
	// write buffer, in bytes. They and their limits are CoreDNS's.
	DnstapQueue     = 10000
	dnstapBuffer    = 1 << 20
	maxDnstapQueue  = 4096
	maxDnstapBuffer = 1024
	// maxDnstaps bounds the dnstaps of a block: every query is written to each of them.
	maxDnstaps  = 8
	dnstapUsage = "dnstap [listen] ENDPOINT [full] [WRITEBUFFER] [QUEUE] (ENDPOINT: the path of a Unix socket, tcp://HOST:PORT or tls://HOST:PORT)"
)

func (x *Dnstap) parse(p *parser, s statement) {
	*x = Dnstap{WriteBuffer: dnstapBuffer, Queue: DnstapQueue}
	first := 0
	if x.Listen = s.word().text == "listen"; x.Listen {
		first = 1
	}
	if p.fits(s, &syntax{usage: dnstapUsage, least: 1 + first, most: 4 + first}) {
		x.endpoint(p, s.args()[first])
		x.sizes(p, s.args()[first+1:])
	}
	var cert []token
	p.body(s,
		opt("identity TEXT", toText(&x.Identity)),
		opt("version TEXT", toText(&x.Version)),
		opt("extra TEXT", toText(&x.Extra)),
		flag("skipverify", &x.SkipVerify),
		opt(certificateUsage, func(args []token) { cert = args }),
	)
	x.certificate(p, s, cert)
}

// certificate reads the arguments of the option tls, which only a listener with the network tls has.
func (x *Dnstap) certificate(p *parser, s statement, args []token) {
	switch {
	case args == nil && x.Listen && x.Network == "tls":
		p.errorf(s.name(), "tls:// needs a certificate; add the option `%s`, or write tcp://", certificateUsage)
		return
	case args == nil:
		return
	case !x.Listen:
		p.errorf(args[0], "only a listening dnstap has certificates of its own; take the line out")
		return
	case x.Network != "tls":
		p.errorf(args[0], "connections to %s://%s are not encrypted; write tls://HOST:PORT, or take the line out", x.Network, x.Address)
		return
	}
	x.TLS.read(p, args)
	switch {
	case x.TLS.CA == "":
	case x.SkipVerify:
		x.TLS.ClientAuth = tls.VerifyClientCertIfGiven
	default:
		x.TLS.ClientAuth = tls.RequireAndVerifyClientCert
	}
}

func (x *Dnstap) endpoint(p *parser, w token) {
	network, rest, ok := strings.Cut(w.text, "://")
	if !ok {
		network, rest = "unix", w.text
	}
	x.Network, x.Address = network, rest
	switch network {
	case "unix":
		if rest == "" {
			p.errorf(w, "the path of the socket is empty; is an environment variable unset?")
		}
	case "tcp", "tls":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" && !x.Listen || port == "" {
			p.errorf(w, "%q is not HOST:PORT; write %s://HOST:PORT", rest, network)
		}
	default:
		p.unknown(w, "scheme", []string{"unix", "tcp", "tls"})
	}
}

// sizes reads [full] [WRITEBUFFER] [QUEUE]. As in CoreDNS, any other word in place of full is
// ignored, so that sizes can be given without it.
func (x *Dnstap) sizes(p *parser, args []token) {
	if len(args) > 0 {
		x.Full = args[0].text == "full"
	}
	if len(args) > 1 {
		n, _ := p.number(args[1], 1, maxDnstapBuffer)
		x.WriteBuffer = int(n) * dnstapBuffer
	}
	if len(args) > 2 {
		n, _ := p.number(args[2], 1, maxDnstapQueue)
		x.Queue = int(n) * DnstapQueue
	}
}

func (x *Dnstap) next() **Dnstap { return &x.Next }

// join appends a further dnstap to the chain.
func (x *Dnstap) join(p *parser, s statement, more directive) {
	extend(p, s, x, more.(*Dnstap), maxDnstaps, "dnstaps; let one collector forward to the others")
}

// All iterates over x and the dnstaps after it.
func (x *Dnstap) All(yield func(*Dnstap) bool) { chain(x)(yield) }

// checkTaps refuses listeners of one address with different options. Equal ones are one listener.
func (p *parser) checkTaps(blocks []*Block) {
	type listening struct {
		tap Dnstap
		at  *Block
	}
	firsts := make(map[string]listening)
	for _, b := range blocks {
		for x := range b.Dnstap.All {
			if !x.Listen {
				continue
			}
			key := *x
			key.Next = nil
			endpoint := x.Network + "://" + x.Address
			if first, ok := firsts[x.Address]; ok && first.tap != key {
				p.errorf(token{text: "dnstap", file: b.File, line: b.Line}, "listen %s has other options in the block at %s:%d; write the same ones, or choose another address",
					endpoint, first.at.File, first.at.Line)
			} else {
				firsts[x.Address] = listening{key, b}
			}
		}
	}
}
