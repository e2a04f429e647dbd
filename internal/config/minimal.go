package config

// Minimal is `minimal`.
type Minimal struct{}

func (x *Minimal) parse(p *parser, s statement) { p.stranger(s.name()) }
