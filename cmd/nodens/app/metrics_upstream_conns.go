package app

import "github.com/nodens-dns/nodens/upstream"

// upstreamConns writes how often the connections to an upstream were used again.
func (s scrape) upstreamConns(to upstream.Server, label, directive string) {
	put := func(proto string, r upstream.Reuse) {
		s.put(proxyConnHits, float64(r.Hits), label, proto, directive)
		s.put(proxyConnMisses, float64(r.Misses), label, proto, directive)
	}
	if !to.GRPC {
		put("udp", to.UDP)
	}
	put("tcp", to.TCP)
	if to.QUIC != (upstream.Reuse{}) { // most agents have no upstream over QUIC
		put("quic", to.QUIC)
	}
}

// addReuse returns the sum of a and b.
func addReuse(a, b upstream.Reuse) upstream.Reuse {
	return upstream.Reuse{Hits: a.Hits + b.Hits, Misses: a.Misses + b.Misses}
}
