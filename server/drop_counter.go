package server

import (
	"net/netip"

	"github.com/nodens-dns/nodens/server/resolver"
)

// dropCounter counts packets and queries that a reader drops because their clients have more than their
// share. It belongs to one goroutine.
type dropCounter struct {
	routes *resolver.Routes // where they are counted
	stripe int              // of the counters
	last   netip.Addr       // the client of the last ones; packets of one client often come together
	n      uint64           // their number; they are not counted in routes yet
}

// add notes that one of client is dropped.
func (d *dropCounter) add(client netip.Addr) {
	if client != d.last {
		d.count()
		d.last = client
	}
	d.n++
}

// count counts what is dropped for the clients. The reader calls it after each batch.
func (d *dropCounter) count() {
	if d.n > 0 {
		d.routes.CountDropped(d.stripe, d.last, d.n)
		d.n = 0
	}
}
