package upstream

import (
	"context"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
)

var neverStops = context.Background()

// dohOptions is what a DNS-over-HTTPS transport needs beside its target.
type dohOptions struct {
	streamOptions
	// method is POST or GET; "" is POST.
	method string
}

// newDoH opens no connection yet. addr is where target is; the URL has target's name.
func newDoH(target config.Target, addr netip.AddrPort, opts dohOptions) transport {
	return newStream(addr, opts.streamOptions)
}
