package config

// Dnstap is `dnstap SOCKET [full]`.
type Dnstap struct{}

func (x *Dnstap) parse(p *parser, s statement) { p.stranger(s.name()) }
