package config

// Switch is a directive without arguments and options.
type Switch struct{}

func (*Switch) parse(p *parser, s statement) {
	p.count(s, s.name().text)
	p.body(s)
}
