package config

// Debug is `debug`.
type Debug struct{}

func (x *Debug) parse(p *parser, s statement) { p.stranger(s.name()) }
