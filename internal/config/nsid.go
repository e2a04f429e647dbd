package config

// NSID is `nsid [DATA]`.
type NSID struct{}

func (x *NSID) parse(p *parser, s statement) { p.stranger(s.name()) }
