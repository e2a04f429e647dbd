package config

import (
	"net"
	"slices"
	"strings"
)

// Dnstap is `dnstap ENDPOINT [full] [WRITEBUFFER] [QUEUE] { … }`. A block may have
// several. Without its Next it is comparable.
type Dnstap struct {
	// Network is "unix", "tcp" or "tls"; Address is the address to dial.
	Network, Address string
	// Full includes the packets in the messages.
	Full bool
	// WriteBuffer is the size of a TCP connection's send buffer, in bytes; Queue is the
	// maximum number of messages that wait.
	WriteBuffer, Queue int
	// Identity and Version describe the server in the messages; "" is its host name and its
	// version.
	Identity, Version string
	// Extra is a text in each message, with the placeholders of log.
	Extra string
	// SkipVerify accepts any certificate.
	SkipVerify bool
	// Next is the next dnstap of the same block, nil for the last.
	Next *Dnstap
}

const (
	// DnstapQueue is the unit of the queue, in messages, and dnstapBuffer the unit of the
	// write buffer, in bytes. They and their limits are CoreDNS's.
	DnstapQueue     = 10000
	dnstapBuffer    = 1 << 20
	maxDnstapQueue  = 4096
	maxDnstapBuffer = 1024
	// maxDnstaps bounds the dnstaps of a block: every query is written to each of them.
	maxDnstaps  = 8
	dnstapUsage = "dnstap ENDPOINT [full] [WRITEBUFFER] [QUEUE] (ENDPOINT: the path of a Unix socket, tcp://HOST:PORT or tls://HOST:PORT)"
)

func (x *Dnstap) parse(p *parser, s statement) {
	*x = Dnstap{WriteBuffer: dnstapBuffer, Queue: DnstapQueue}
	if args := s.args(); len(args) > 0 && args[0].text == "listen" {
		f := p.errorf(args[0], "CoreDNS has dnstap listen, this version of nodens doesn't: let the collector listen, and write its address here")
		f.Allowed = []string{"ENDPOINT"}
	} else if p.count(s, 1, 4, dnstapUsage) {
		x.endpoint(p, args[0])
		x.sizes(p, args[1:])
	}
	p.body(s, options{
		"identity":   {usage: "identity TEXT", least: 1, most: 1, set: func(args []token) { x.Identity = args[0].text }},
		"version":    {usage: "version TEXT", least: 1, most: 1, set: func(args []token) { x.Version = args[0].text }},
		"extra":      {usage: "extra TEXT", least: 1, most: 1, set: func(args []token) { x.Extra = args[0].text }},
		"skipverify": flag("skipverify", &x.SkipVerify),
		"tls":        replacedBy("only a listening dnstap has certificates of its own; take the line out"),
	})
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
		if err != nil || host == "" || port == "" {
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

// join appends a further dnstap to the chain.
func (x *Dnstap) join(p *parser, s statement, next directive) {
	chain := slices.Collect(x.All)
	if len(chain) == maxDnstaps {
		p.errorf(s.name(), "a block has more than %d dnstaps; let one collector forward to the others", maxDnstaps)
		return
	}
	chain[len(chain)-1].Next = next.(*Dnstap)
}

// All iterates over x and the dnstaps after it.
func (x *Dnstap) All(yield func(*Dnstap) bool) {
	for ; x != nil && yield(x); x = x.Next {
	}
}
