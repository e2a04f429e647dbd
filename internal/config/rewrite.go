package config

// Rewrite is `rewrite [continue|stop] FIELD …`.
type Rewrite struct{}

func (x *Rewrite) parse(p *parser, s statement) { p.stranger(s.name()) }
