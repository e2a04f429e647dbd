package config

// Debug is `debug`: log at debug level. In any block it applies to the whole process.
type Debug struct{}

func (*Debug) parse(p *parser, s statement) {
	p.body(s, nil)
	p.count(s, 0, 0, "debug")
}
