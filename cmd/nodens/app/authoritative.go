package app

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/tsig"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// authoritative returns the directives of zones that the agent serves with authority, and what they share over all generations.
func authoritative(log *slog.Logger) []directive {
	primaries, transfers := zonefile.NewPrimaries(), transfer.NewTransfers(log.With("part", "transfer"))
	zones := func(name string, open func(b *config.Block, opts zonefile.Options) (*zonefile.Table, error)) func(*builder, *blockParts) (any, error) {
		return func(_ *builder, p *blockParts) (any, error) {
			return opened(newZoneTable(p.block, open, log.With("part", name)))
		}
	}
	return []directive{
		{name: "rpz", key: func(x keyed) any { return *x.block.RPZ },
			open: func(a *builder, p *blockParts) (any, error) {
				return opened(zonefile.NewPolicies(p.block.RPZ, primaries, zonefile.Options{Logger: log.With("part", "rpz")}, a.endCopies))
			},
			install: setPart(func(z *resolver.Zone, p *zonefile.Policies) { z.RPZ = p }),
			check:   zonefile.CheckPolicies, metrics: readPolicies},
		{name: "tsig", install: setting(func(z *resolver.Zone, b *config.Block) { z.TSIG = tsig.New(b.TSIG) })},
		{name: "file", key: func(x keyed) any { return *x.block.ZoneFile },
			open: zones("file", func(b *config.Block, opts zonefile.Options) (*zonefile.Table, error) {
				return zonefile.New(b.ZoneFile, opts)
			}),
			install: setPart(func(z *resolver.Zone, t *zoneTable) { z.File = t.Table }),
			check:   zonefile.CheckFiles},
		{name: "auto", key: func(x keyed) any { return *x.block.Auto },
			open: zones("auto", func(b *config.Block, opts zonefile.Options) (*zonefile.Table, error) {
				return zonefile.NewAuto(b.Auto, opts), nil
			}),
			install: setPart(func(z *resolver.Zone, t *zoneTable) { z.Auto = t.Table }),
			check:   zonefile.CheckAuto},
		{name: "secondary", key: func(x keyed) any { return *x.block.Secondary },
			open: zones("secondary", func(b *config.Block, opts zonefile.Options) (*zonefile.Table, error) {
				return zonefile.NewSecondary(b.Secondary, primaries, opts), nil
			}),
			install: setPart(func(z *resolver.Zone, t *zoneTable) { z.Secondary = t.Table }),
			metrics: func(s *scrape, g *generation) { s.secondaries(g, primaries) }},
		{name: "transfer", key: func(x keyed) any { return *x.block.Transfer },
			open:    func(_ *builder, p *blockParts) (any, error) { return transfer.New(p.block.Transfer, transfers), nil },
			install: setPart(func(z *resolver.Zone, t *transfer.Table) { z.Transfer = t }),
			beside:  newAnnouncer,
			metrics: func(s *scrape, _ *generation) { read(s, zoneTransfers(transfers)) }},
	}
}

// rpzZoneState is loaded or empty.
type rpzZoneState string

// rpzZone is what metrics say of a response policy zone.
type rpzZone struct {
	state   rpzZoneState
	rules   byLabel
	queries func(f func(action, mode string, n uint64))
}

// readPolicies reads the metrics of the response policy zones of all blocks of g.
func readPolicies(s *scrape, g *generation) {
	for _, p := range g.blocks {
		zones := part[*zonefile.Policies](p, "rpz")
		if zones == nil {
			continue
		}
		zones.Each(func(zone wire.Name, st zonefile.PolicyStats, queries func(func(action, mode string, n uint64))) {
			x := rpzZone{state: "empty", queries: queries}
			x.rules = byLabel{"name": uint64(st.Names), "address": uint64(st.Addrs), "ignored": uint64(st.Ignored)}
			if st.Loaded {
				x.state = "loaded"
			}
			read(s, x.state)
			read(s, x, zone.String())
		})
	}
}

// secondaries reads the metrics of the zones of primary servers, if there are some.
func (s *scrape) secondaries(g *generation, primaries *zonefile.Primaries) {
	var zones, empty int
	for _, p := range g.blocks {
		if t := part[*zoneTable](p, "secondary"); t != nil {
			all, none := t.Zones()
			zones, empty = zones+all, empty+none
		}
	}
	if zones == 0 {
		return
	}
	st := primaries.Stats()
	read(s, secondaryZones{
		zones:     byLabel{"loaded": uint64(zones - empty), "empty": uint64(empty)},
		transfers: byLabel{"transferred": st.Transferred.Load(), "unchanged": st.Checked.Load(), "failed": st.Failed.Load()},
		notifies:  byLabel{"accepted": st.Notified.Load(), "ignored": st.Ignored.Load()},
	})
}

// zoneTable is the zones of a directive and the servers that are told of their changes. It outlives reloads that
// change these servers.
type zoneTable struct {
	*zonefile.Table
	notified atomic.Pointer[transfer.Table]
}

// newZoneTable opens a table of b with open.
func newZoneTable(b *config.Block, open func(*config.Block, zonefile.Options) (*zonefile.Table, error), log *slog.Logger) (t *zoneTable, err error) {
	t = new(zoneTable)
	t.Table, err = open(b, zonefile.Options{Logger: log, Changed: func(z *zonefile.Zone) {
		if to := t.notified.Load(); to != nil {
			to.Notify(z.SOA())
		}
	}})
	return t, err
}

// join makes the servers of p's transfer directive the ones that are told of changes.
func (t *zoneTable) join(p *blockParts) { t.notified.Store(transferOf(p)) }

// transferOf returns p's transfer directive, nil if it has none.
func transferOf(p *blockParts) *transfer.Table { return part[*transfer.Table](p, "transfer") }

// announceCheck is the interval at which the serials of the cluster's zones are compared with those that were told.
const announceCheck = time.Second

// clusterAnnouncer tells servers of changes of a block's zones of kubernetes and k8s_external. The view has no event for a change of
// the serial, which would cost each change of the cluster something; comparing it takes some 100 ns.
type clusterAnnouncer struct {
	// announce is called with the SOA record of each zone, whether or not it has changed.
	announce func(soa wire.RR)
	zones    []announcedZone
	// synced reports whether the view has all data.
	synced func() bool
}

// announcedZone is a zone of which soa returns the SOA record; ok is false if it can't be transferred.
type announcedZone struct {
	name wire.Name
	soa  func(wire.Name) (record wire.RR, ok bool)
}

// newAnnouncer returns what tells servers of changes of the cluster's zones, nil if the block's transfer directives
// name no servers for any.
func newAnnouncer(p *blockParts) runner {
	if p.cluster() == nil {
		return nil
	}
	to := transferOf(p)
	a := &clusterAnnouncer{announce: to.Announce, synced: p.view.Synced}
	if p.external() != nil { // first, as on the path of queries
		a.add(to, p.block.K8sExternal.Zones, p.external().SOA)
	}
	a.add(to, p.block.Kubernetes.Zones, p.cluster().SOA)
	if len(a.zones) == 0 {
		return nil
	}
	return a
}

// add adds those of zones that can be transferred and of whose changes to tells.
func (a *clusterAnnouncer) add(to *transfer.Table, zones []wire.Name, soa func(wire.Name) (wire.RR, bool)) {
	for _, name := range zones {
		known := slices.ContainsFunc(a.zones, func(z announcedZone) bool { return z.name == name })
		if _, ok := soa(name); ok && !known && to.Notifies(name) {
			a.zones = append(a.zones, announcedZone{name, soa})
		}
	}
}

// Run tells of changes until ctx ends.
func (a *clusterAnnouncer) Run(ctx context.Context) {
	ticker := time.NewTicker(announceCheck)
	defer ticker.Stop()
	for {
		if a.synced() {
			for _, z := range a.zones {
				if soa, ok := z.soa(z.name); ok {
					a.announce(soa)
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
