package resolver

import (
	"net/netip"

	"github.com/nodens-dns/nodens/server/clients"
)

// CountDropped counts for the client at addr n packets that the reader of a socket has dropped before it
// parsed them. stripe is the reader's, as in its requests. It allocates only for the first query of a client.
func (t *Routes) CountDropped(stripe int, addr netip.Addr, n uint64) {
	t.Clients.Limit(stripe, addr, clients.ReasonSocket, n)
}

// CountClosed counts for the client at addr a connection that was closed for another one, or refused.
func (t *Routes) CountClosed(stripe int, addr netip.Addr) {
	t.Clients.Limit(stripe, addr, clients.ReasonConnections, 1)
}
