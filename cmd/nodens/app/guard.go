package app

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
)

// guards are the steps of a server block that need no other part.
type guards struct {
	acl   *server.ACL
	local *server.Local
	dns64 *server.DNS64
}

func newGuards(b *config.Block) (g guards) {
	if b.ACL != nil {
		g.acl = server.NewACL(b.ACL)
	}
	if b.Local != nil {
		g.local = server.NewLocal(b.Local)
	}
	if b.DNS64 != nil {
		g.dns64 = server.NewDNS64(b.DNS64)
	}
	return g
}

// guard puts p's guards into z.
func (p *parts) guard(z *server.Zone) {
	b := p.block
	z.ACL, z.Local, z.DNS64 = p.guards.acl, p.guards.local, p.guards.dns64
	z.Any, z.Minimal, z.Whoami = b.Any != nil, b.Minimal != nil, b.Whoami != nil
	if b.NSID != nil {
		z.NSID = b.NSID.ID
	}
}

// newView makes the view of b on addr, nil if it has none.
func newView(b *config.Block, addr netip.AddrPort) *server.View {
	if b.View == nil {
		return nil
	}
	return server.NewView(b.View, addr)
}

// describeGuards says what b's guards do, for `nodens check`.
func describeGuards(w io.Writer, b *config.Block) {
	if v := b.View; v != nil {
		fmt.Fprintf(w, "  view           %s takes a query if %s\n", v.Name, conditions(v))
	}
	if a := b.ACL; a != nil {
		for _, r := range a.Rules {
			fmt.Fprintf(w, "  acl            %s by %d policies\n", names(r.Zones), len(r.Policies))
		}
	}
	if d := b.DNS64; d != nil {
		fmt.Fprintf(w, "  dns64          IPv4 addresses behind %s\n", d.Prefix)
	}
}

func conditions(v *config.View) string {
	list := make([]string, len(v.When))
	for i, e := range v.When {
		list[i] = e.String()
	}
	if len(list) == 0 {
		return "it comes"
	}
	return strings.Join(list, ", and ")
}

// guarded adds up what the zones of one scrape count, where labels can't tell them
// apart.
type guarded struct {
	localhosts uint64
	local      bool
	mapped     map[string]uint64            // by server
	allowed    map[aclKey]uint64            // zone is ""
	denied     map[family]map[aclKey]uint64 // by metric
}

// aclKey is the labels of a verdict.
type aclKey struct{ server, zone, view string }

func newGuarded() *guarded {
	return &guarded{mapped: make(map[string]uint64), allowed: make(map[aclKey]uint64), denied: make(map[family]map[aclKey]uint64)}
}

func (g *guarded) add(srv, view string, z *server.Zone) {
	if z.Local != nil {
		g.local = true
		g.localhosts += z.Stats.Localhosts()
	}
	if z.DNS64 != nil {
		g.mapped[srv] += z.Stats.Mapped()
	}
	v := z.Stats.Verdicts()
	if z.ACL != nil {
		g.allowed[aclKey{server: srv, view: view}] += v.Allowed
	}
	for f, of := range map[family]map[wire.Name]uint64{aclBlocked: v.Blocked, aclFiltered: v.Filtered, aclDropped: v.Dropped} {
		if g.denied[f] == nil {
			g.denied[f] = make(map[aclKey]uint64)
		}
		for zone, n := range of {
			g.denied[f][aclKey{srv, zone.String(), view}] += n
		}
	}
}

func (g *guarded) put(s scrape) {
	if g.local {
		s.put(localNames, float64(g.localhosts))
	}
	for srv, n := range g.mapped {
		s.put(dns64Mapped, float64(n), srv)
	}
	for k, n := range g.allowed {
		s.put(aclAllowed, float64(n), k.server, k.view)
	}
	for f, of := range g.denied {
		for k, n := range of {
			s.put(f, float64(n), k.server, k.zone, k.view)
		}
	}
}
