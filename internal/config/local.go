package config

// Local is `local`.
type Local struct{}

func (x *Local) parse(p *parser, s statement) { p.stranger(s.name()) }
