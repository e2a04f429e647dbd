package config

import (
	"net"
	"slices"
	"strings"
)

// Dnstap is `dnstap ENDPOINT [full] [WRITEBUFFER] [QUEUE] { … }`. A block may have
// several. Without its Next it is comparable.
type Dnstap struct {
	// Network is "unix", "tcp" or "tls", Address what it is dialled at.
	Network, Address string
	// Full says that the messages come with the packets.
	Full bool
	// WriteBuffer is what the kernel may keep of a TCP connection, in bytes; Queue is
	// how many messages may wait.
	WriteBuffer, Queue int
	// Identity and Version are what the server says of itself; "" is its host name and
	// what it is.
	Identity, Version string
	// Extra is a text that comes with each message, with the placeholders of log.
	Extra string
	// SkipVerify says that any certificate will do.
	SkipVerify bool
	// Next is the next dnstap of the same block, nil for the last.
	Next *Dnstap
}

const (
	// DnstapQueue is the unit of the queue, in messages, and dnstapBuffer that of the
	// write buffer, in bytes: CoreDNS's, as are the bounds.
	DnstapQueue     = 10000
	dnstapBuffer    = 1 << 20
	maxDnstapQueue  = 4096
	maxDnstapBuffer = 1024
	// maxDnstaps bounds a block's chain, each of which every query is written to.
	maxDnstaps  = 8
	dnstapUsage = "dnstap ENDPOINT [full] [WRITEBUFFER] [QUEUE] (ENDPOINT: the path of a Unix socket, tcp://HOST:PORT or tls://HOST:PORT)"
)

func (x *Dnstap) parse(p *parser, s statement) {
	*x = Dnstap{WriteBuffer: dnstapBuffer, Queue: DnstapQueue}
	if args := s.args(); len(args) > 0 && args[0].text == "listen" {
		f := p.errorf(args[0], "CoreDNS has dnstap listen, this version of nodens doesn't: let the collector listen, and name it here")
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

// sizes reads [full] [WRITEBUFFER] [QUEUE]. As in CoreDNS, any other word in the place
// of full is passed over, so that sizes can stand without it.
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
		p.errorf(s.name(), "a block has more than %d dnstaps; let one collector pass on to others", maxDnstaps)
		return
	}
	chain[len(chain)-1].Next = next.(*Dnstap)
}

// All gives x and those behind it.
func (x *Dnstap) All(yield func(*Dnstap) bool) {
	for ; x != nil && yield(x); x = x.Next {
	}
}
