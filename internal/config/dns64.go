package config

// DNS64 is `dns64 [PREFIX] { … }`.
type DNS64 struct{}

func (x *DNS64) parse(p *parser, s statement) { p.stranger(s.name()) }
