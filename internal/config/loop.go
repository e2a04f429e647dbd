package config

// Loop is `loop`: find out whether the upstreams lead back here, and forward nothing to
// them while they do.
type Loop struct{}

func (l *Loop) parse(p *parser, s statement) {
	p.count(s, 0, 0, "loop")
	p.body(s, nil)
}
