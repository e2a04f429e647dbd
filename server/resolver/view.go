package resolver

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/wire"
)

// View decides which queries a zone takes. It is immutable and safe for concurrent use.
type View struct {
	name string
	when []*expression.Expression
	addr netip.AddrPort
}

// NewView makes the view of cfg for queries that arrive at addr.
func NewView(cfg *config.View, addr netip.AddrPort) *View {
	return &View{name: cfg.Name, when: cfg.When, addr: addr}
}

// Name returns the view's name, "" for a nil View.
func (v *View) Name() string {
	if v == nil {
		return ""
	}
	return v.name
}

// matches reports whether all expressions of the view of z are true for r.
func (v *View) matches(r *Request, z *Zone) bool {
	f := viewEnv{r: r, zone: z, server: v.addr}
	for _, e := range v.when {
		if !e.Eval(&f) {
			return false
		}
	}
	return true
}

// firstMatching returns the first of z and the zones after it whose view matches r, nil for
// none.
func (z *Zone) firstMatching(r *Request) *Zone {
	for ; z != nil; z = z.next {
		if z.View == nil || z.View.matches(r, z) {
			return z
		}
	}
	return nil
}

// observeProbe reports whether r is a loop probe of z, or of a zone with the same name, that
// has come back.
func (rt *Routes) observeProbe(z *Zone, r *Request) bool {
	if r.Query.Type != wire.TypeHINFO {
		return false
	}
	for z = rt.zones[z.Name]; z != nil; z = z.next {
		if r.trace != nil { // without recording it
			if z.Loop.probeOf(&r.Query) != nil {
				return true
			}
			continue
		}
		if z.Loop.observe(&r.Query, r.Client.Addr()) {
			return true
		}
	}
	return false
}

// viewEnv is the environment of expressions about a request. It makes strings on demand, so
// only zones with views pay for them.
type viewEnv struct {
	r      *Request
	zone   *Zone
	server netip.AddrPort
}

func (f *viewEnv) Type() string  { return wire.TypeName(f.r.Query.Type) }
func (f *viewEnv) Name() string  { return wire.Name(f.r.Query.Name()).String() }
func (f *viewEnv) Class() string { return wire.ClassName(f.r.Query.Class) }
func (f *viewEnv) Size() int     { return len(f.r.Query.Packet) }
func (f *viewEnv) ID() int       { return int(f.r.Query.ID) }
func (f *viewEnv) Opcode() int   { return f.r.Query.Opcode() }
func (f *viewEnv) DO() bool      { return f.r.Query.DO }

// Proto is tcp for TLS and HTTPS, too, and udp for QUIC.
func (f *viewEnv) Proto() string {
	return f.r.Proto.String()
}

func (f *viewEnv) Bufsize() int {
	if f.r.Proto == UDP {
		return f.r.Query.Limit()
	}
	return wire.MaxMessage
}

func (f *viewEnv) Client() netip.AddrPort { return f.r.Client }
func (f *viewEnv) Server() netip.AddrPort { return f.server }

func (f *viewEnv) Metadata(name string) string { return f.r.metadata(f.zone, name) }
