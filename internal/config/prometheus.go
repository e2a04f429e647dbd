package config

// Prometheus is `prometheus [ADDRESS]`; "localhost:9153" by default.
type Prometheus struct {
	Addr string
}

func (m *Prometheus) parse(p *parser, s statement) {
	m.Addr = "localhost:9153"
	if p.count(s, 0, 1, "prometheus [ADDRESS:PORT]") && len(s.args()) == 1 {
		m.Addr, _ = p.listen(s.args()[0])
	}
	p.body(s, options{
		"runtime_metrics": replacedBy("the Go runtime's usual metrics are always there; take the line out"),
		"tls":             replacedBy("metrics are served without TLS; bind them to a loopback address"),
	})
}
