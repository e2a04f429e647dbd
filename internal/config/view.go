package config

// View is `view NAME { expr EXPRESSION }`.
type View struct{}

func (x *View) parse(p *parser, s statement) { p.stranger(s.name()) }
