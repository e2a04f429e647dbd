package config

import (
	"math"
	"time"
)

// noEffect are the directives that are read and checked and change nothing, with the reason. The
// agent does what they ask for without them.
var noEffect = map[string]string{
	"cancel":      "a query ends after 5 seconds at most",
	"grpc_server": "connections and streams are always limited",
	"https":       "connections and streams are always limited",
	"multisocket": "each address has a socket for each core, or as many as --readers says",
	"shed":        "queries beyond what the agent can hold are always shed",
}

// NoEffect returns why a directive that is accepted has no effect. It returns "" for a directive
// that has one, and for one that is not accepted.
func NoEffect(directive string) string { return noEffect[directive] }

// Multisocket is `multisocket [SOCKETS]`. It has no effect.
type Multisocket struct{}

// maxSockets is CoreDNS's limit for the sockets of an address.
const maxSockets = 1024

func (*Multisocket) parse(p *parser, s statement) {
	if p.count(s, "multisocket [SOCKETS]") && len(s.args()) == 1 {
		p.number(s.args()[0], 1, maxSockets)
	}
	p.body(s)
}

// Shed is `shed`. It has no effect.
type Shed struct{}

func (*Shed) parse(p *parser, s statement) {
	p.count(s, "shed")
	if p.block.Transport != PlainDNS {
		p.errorf(s.name(), "shed is for blocks that serve plain DNS, and this one serves %s://; take it out", p.block.Transport)
	}
	p.body(s)
}

// Cancel is `cancel [TIMEOUT]`. It has no effect.
type Cancel struct{}

func (*Cancel) parse(p *parser, s statement) {
	if p.count(s, "cancel [TIMEOUT]") && len(s.args()) == 1 {
		p.duration(s.args()[0], 1, time.Duration(math.MaxInt64))
	}
	p.body(s)
}

// HTTPSLimits is `https { max_connections N; max_streams N }`. It has no effect.
type HTTPSLimits struct{}

func (*HTTPSLimits) parse(p *parser, s statement) { p.connLimits(s) }

// GRPCServer is `grpc_server { max_connections N; max_streams N }`. It has no effect.
type GRPCServer struct{}

func (*GRPCServer) parse(p *parser, s statement) { p.connLimits(s) }

// connLimits checks the limits of connections and streams in s.
func (p *parser) connLimits(s statement) {
	p.count(s, s.name().text+" { max_connections|max_streams NUMBER }")
	checked := toNumber(p, new(int64), 0, math.MaxUint32)
	p.body(s, opt("max_connections NUMBER", checked), opt("max_streams NUMBER", checked))
}
