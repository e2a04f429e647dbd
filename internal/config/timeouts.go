package config

// Timeouts is `timeouts { read D; write D; idle D }`.
type Timeouts struct{}

func (x *Timeouts) parse(p *parser, s statement) { p.stranger(s.name()) }
