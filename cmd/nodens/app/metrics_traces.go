package app

var (
	traceSpans   = counter("nodens_trace_spans_total", "Spans that the collector of traces has taken, by collector. Only with trace.", "endpoint")
	traceDropped = counter("nodens_trace_spans_dropped_total", "Spans dropped, by collector of traces and by reason: too many waited (queue), the collector did not take them in time (failed), or it refused them (rejected). Only with trace.", "endpoint", "reason")
)

// exporters puts the counters of the exporters.
func (s scrape) exporters(g *generation) {
	type series struct{ endpoint, reason string }
	sent, dropped := make(map[string]uint64), make(map[series]uint64)
	for _, e := range g.exporters {
		sent[e.Endpoint()] += e.Sent()
		e.EachDropped(func(reason string, n uint64) { dropped[series{e.Endpoint(), reason}] += n })
	}
	for to, n := range sent {
		s.put(traceSpans, float64(n), to)
	}
	for k, n := range dropped {
		s.put(traceDropped, float64(n), k.endpoint, k.reason)
	}
}
