package config

// Loop is `loop`: at start, find out whether the upstreams lead back here.
type Loop struct{}

func (l *Loop) parse(p *parser, s statement) {
	p.count(s, 0, 0, "loop")
	p.body(s, nil)
}
