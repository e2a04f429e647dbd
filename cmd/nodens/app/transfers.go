package app

import (
	"sync/atomic"

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

func (s scrape) transfers(t *transfer.Transfers) {
	t.EachCount(func(zone, result string, n uint64) { s.put(transfers, float64(n), zone, result) })
	t.EachNotify(func(zone, result string, n uint64) { s.put(notifies, float64(n), zone, result) })
}
