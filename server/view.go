package server

import (
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/wire"
)

// View says which queries a zone takes. It is immutable and safe for concurrent use.
type View struct {
	name string
	when []*expression.Expression
	addr netip.AddrPort
}

// NewView makes the view of cfg for queries that come in on addr.
func NewView(cfg *config.View, addr netip.AddrPort) *View {
	return &View{name: cfg.Name, when: cfg.When, addr: addr}
}

// Name is the view's name; that of no view is "".
func (v *View) Name() string {
	if v == nil {
		return ""
	}
	return v.name
}

// matches reports whether all of the view's expressions are true of x.
func (v *View) matches(x *request) bool {
	f := viewEnv{x: x, server: v.addr}
	for _, e := range v.when {
		if !e.Eval(&f) {
			return false
		}
	}
	return true
}

// firstMatching is the first of z and the zones behind it that takes x, nil if none does.
func (z *Zone) firstMatching(x *request) *Zone {
	for ; z != nil; z = z.next {
		if z.View == nil || z.View.matches(x) {
			return z
		}
	}
	return nil
}

// observeProbe reports whether x, which z takes, is the probe of z or of another view of the
// same name, on its way back.
func (rt *Routes) observeProbe(z *Zone, x *request) bool {
	if x.query.Type != wire.TypeHINFO {
		return false
	}
	for z = rt.zones[z.Name]; z != nil; z = z.next {
		if z.Loop.observe(&x.query, x.client.Addr()) {
			return true
		}
	}
	return false
}

// viewEnv are what expressions ask of an exchange. Their strings are made when they are
// asked for: only zones with views pay for them.
type viewEnv struct {
	x      *request
	server netip.AddrPort
}

func (f *viewEnv) Type() string  { return wire.TypeName(f.x.query.Type) }
func (f *viewEnv) Name() string  { return wire.Name(f.x.query.Name()).String() }
func (f *viewEnv) Class() string { return dns.Class(f.x.query.Class).String() }
func (f *viewEnv) Size() int     { return len(f.x.query.Packet) }
func (f *viewEnv) ID() int       { return int(f.x.query.ID) }
func (f *viewEnv) Opcode() int   { return f.x.query.Opcode() }
func (f *viewEnv) DO() bool      { return f.x.query.DO }

// Proto is tcp for all that runs on top of it, too.
func (f *viewEnv) Proto() string {
	if f.x.proto == udp {
		return "udp"
	}
	return "tcp"
}

func (f *viewEnv) Bufsize() int {
	if f.x.proto == udp {
		return f.x.query.Limit()
	}
	return wire.MaxMessage
}

func (f *viewEnv) Client() netip.AddrPort { return f.x.client }
func (f *viewEnv) Server() netip.AddrPort { return f.server }
