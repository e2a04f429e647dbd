package config

// Prometheus is `prometheus [ADDRESS]`; "localhost:9153" by default.
type Prometheus struct {
	Addr string
}

func (m *Prometheus) parse(p *parser, s statement) {
	m.Addr = p.listenArgument(s, "prometheus [ADDRESS:PORT]", "localhost:9153")
	p.body(s,
		replacedBy("runtime_metrics", "the Go runtime's usual metrics are always there; take the line out"),
		replacedBy("tls", "metrics are served without TLS; bind them to a loopback address"),
	)
}
