package config

// Template is `template CLASS TYPE [ZONES…] { … }`.
type Template struct{}

func (x *Template) parse(p *parser, s statement) { p.stranger(s.name()) }
