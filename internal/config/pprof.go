package config

// Pprof is `pprof [ADDRESS]`.
type Pprof struct{}

func (x *Pprof) parse(p *parser, s statement) { p.stranger(s.name()) }
