package config

// TLSServer is `tls CERT KEY [CA]`.
type TLSServer struct{}

func (x *TLSServer) parse(p *parser, s statement) { p.stranger(s.name()) }
