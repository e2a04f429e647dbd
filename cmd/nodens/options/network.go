package options

import (
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// NewNetwork returns d as commands print it and the admin socket returns it. Its lists are not nil.
func NewNetwork(d netsetup.Description) report.Network {
	n := report.Network{
		Interface: d.Interface, Addresses: []string{}, ExternalInterfaces: append([]string{}, d.External...),
		OpenInterfaces: append([]string{}, d.NotExternal...), DefaultRoutes: d.DefaultRoutes, Backend: d.Backend, BackendReason: d.Reason,
		Blocked: append([]string{}, d.Blocked...), Rules: []string{},
	}
	for _, a := range d.Addresses {
		n.Addresses = append(n.Addresses, a.String())
	}
	if d.Rules != "" {
		n.Rules = strings.Split(d.Rules, "\n")
	}
	return n
}
