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

// takes reports whether all of the view's expressions are true of x.
func (v *View) takes(x *exchange) bool {
	f := facts{x: x, server: v.addr}
	for _, e := range v.when {
		if !e.Holds(&f) {
			return false
		}
	}
	return true
}

// viewed is the first of z and the zones behind it that takes x, nil if none does.
func (z *Zone) viewed(x *exchange) *Zone {
	for ; z != nil; z = z.next {
		if z.View == nil || z.View.takes(x) {
			return z
		}
	}
	return nil
}

// looped reports whether x, which z takes, is the probe of z or of another view of the
// same name, on its way back.
func (rt *Routes) looped(z *Zone, x *exchange) bool {
	if x.q.Type != wire.TypeHINFO {
		return false
	}
	for z = rt.zones[z.Name]; z != nil; z = z.next {
		if z.Loop.sees(&x.q, x.client.Addr()) {
			return true
		}
	}
	return false
}

// facts are what expressions ask of an exchange. Their strings are made when they are
// asked for: only zones with views pay for them.
type facts struct {
	x      *exchange
	server netip.AddrPort
}

func (f *facts) Type() string  { return wire.TypeName(f.x.q.Type) }
func (f *facts) Name() string  { return wire.Name(f.x.q.Name()).String() }
func (f *facts) Class() string { return dns.Class(f.x.q.Class).String() }
func (f *facts) Size() int     { return len(f.x.q.Packet) }
func (f *facts) ID() int       { return int(f.x.q.ID) }
func (f *facts) Opcode() int   { return f.x.q.Opcode() }
func (f *facts) DO() bool      { return f.x.q.DO }

// Proto is tcp for all that runs on top of it, too.
func (f *facts) Proto() string {
	if f.x.via == udp {
		return "udp"
	}
	return "tcp"
}

func (f *facts) Bufsize() int {
	if f.x.via == udp {
		return f.x.q.Limit()
	}
	return wire.MaxMessage
}

func (f *facts) Client() netip.AddrPort { return f.x.client }
func (f *facts) Server() netip.AddrPort { return f.server }
