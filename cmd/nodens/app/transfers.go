package app

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// notifyHook leads from a table of zones to the servers that are told of changes. The table outlives
// reloads that change these.
type notifyHook struct {
	to atomic.Pointer[transfer.Table]
}

// lead makes t the one that tells of changes; nil: nobody is told. A nil hook has no zones.
func (h *notifyHook) lead(t *transfer.Table) {
	if h != nil {
		h.to.Store(t)
	}
}

// changed tells of a change of z.
func (h *notifyHook) changed(z *zonefile.Zone) {
	if t := h.to.Load(); t != nil {
		t.Notify(z.SOA())
	}
}

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

// addAnnouncer adds what tells servers of changes of the cluster's zones, if the block's transfer directives name servers for any.
func addAnnouncer(p *blockParts) {
	if p.transfer == nil || p.cluster == nil {
		return
	}
	a := &clusterAnnouncer{announce: p.transfer.Announce, synced: p.view.Synced}
	if p.external != nil { // first, as on the path of queries
		a.add(p.transfer, p.block.K8sExternal.Zones, p.external.SOA)
	}
	a.add(p.transfer, p.block.Kubernetes.Zones, p.cluster.SOA)
	if len(a.zones) > 0 {
		p.announcer = a
	}
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

func (s scrape) transfers(t *transfer.Transfers) {
	t.EachCount(func(zone, result string, n uint64) { s.put(transfers, float64(n), zone, result) })
	t.EachNotify(func(zone, result string, n uint64) { s.put(notifies, float64(n), zone, result) })
}
