package transfer

import (
	"context"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/wire"
)

// SetExchange replaces how NOTIFYs are sent, before Run.
func (t *Transfers) SetExchange(f func(ctx context.Context, source netip.Addr, to netip.AddrPort, soa wire.RR) (wire.Rcode, error)) {
	t.exchange = f
}
