package app

import (
	"net/netip"
	"strconv"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server"
)

// transport puts the replies at addr by the codes of its transport.
func (s scrape) transport(from *server.Server, addr server.ListenAddr, via config.Transport) {
	srv := serverLabel(via, addr.AddrPort)
	byStatus := func(m metricDesc) func(status int, n uint64) {
		return func(status int, n uint64) { s.put(m, float64(n), srv, strconv.Itoa(status)) }
	}
	switch via {
	case config.DNSOverHTTPS:
		from.EachHTTPStatus(addr, byStatus(httpsResponses))
	case config.DNSOverHTTP3:
		from.EachHTTPStatus(addr, byStatus(https3Responses))
	case config.DNSOverQUIC:
		from.EachDoQCode(addr, func(code int, n uint64) {
			s.put(quicResponses, float64(n), srv, "0x"+strconv.FormatInt(int64(code), 16))
		})
	}
}

// serverLabel returns CoreDNS's value of the server label.
func serverLabel(via config.Transport, addr netip.AddrPort) string {
	if addr.Addr().IsUnspecified() {
		return via.String() + "://:" + strconv.Itoa(int(addr.Port()))
	}
	return via.String() + "://" + addr.String()
}
