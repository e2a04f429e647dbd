package config

// Whoami is `whoami`.
type Whoami struct{}

func (x *Whoami) parse(p *parser, s statement) { p.stranger(s.name()) }
