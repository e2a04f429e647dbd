package config

// Any is `any`.
type Any struct{}

func (x *Any) parse(p *parser, s statement) { p.stranger(s.name()) }
