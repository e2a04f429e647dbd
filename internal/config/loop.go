package config

// Loop is `loop`: detect whether the upstreams forward queries back to this server, and stop
// forwarding to them while they do.
type Loop struct{}

func (l *Loop) parse(p *parser, s statement) {
	p.count(s, 0, 0, "loop")
	p.body(s, nil)
}
