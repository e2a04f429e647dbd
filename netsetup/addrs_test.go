package netsetup

// Inside the package: other tests inside use these helpers.

import (
	"net/netip"

	"github.com/google/go-cmp/cmp"
)

func parseAddrs(words ...string) []netip.Addr {
	var as []netip.Addr
	for _, w := range words {
		as = append(as, netip.MustParseAddr(w))
	}
	return as
}

func ports(words ...string) (to []netip.AddrPort) {
	for _, w := range words {
		to = append(to, netip.MustParseAddrPort(w))
	}
	return to
}

var comparePorts = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
