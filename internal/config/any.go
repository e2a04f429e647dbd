package config

// Any is `any`: ANY queries are answered with a HINFO record (RFC 8482).
type Any struct{}

func (a *Any) parse(p *parser, s statement) {
	p.count(s, 0, 0, "any")
	p.body(s, nil)
}
