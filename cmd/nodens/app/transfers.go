package app

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// zoneTable is the zones of a directive and the servers that are told of their changes. It outlives reloads that
// change these servers.
type zoneTable struct {
	*zonefile.Table
	notified atomic.Pointer[transfer.Table]
}

// newZoneTable opens a table with open.
func newZoneTable(open func(zonefile.Options) (*zonefile.Table, error), log *slog.Logger) (t *zoneTable, err error) {
	t = new(zoneTable)
	t.Table, err = open(zonefile.Options{Logger: log, Changed: func(z *zonefile.Zone) {
		if to := t.notified.Load(); to != nil {
			to.Notify(z.SOA())
		}
	}})
	return t, err
}

// notify makes to's servers the ones that are told of changes; nil: none is.
func (t *zoneTable) notify(to *transfer.Table) { t.notified.Store(to) }

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
func newAnnouncer(p *blockParts) *clusterAnnouncer {
	if p.transfer() == nil || p.cluster() == nil {
		return nil
	}
	a := &clusterAnnouncer{announce: p.transfer().Announce, synced: p.view.Synced}
	if p.external() != nil { // first, as on the path of queries
		a.add(p.transfer(), p.block.K8sExternal.Zones, p.external().SOA)
	}
	a.add(p.transfer(), p.block.Kubernetes.Zones, p.cluster().SOA)
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
