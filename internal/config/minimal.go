package config

// Minimal is `minimal`: positive answers have no authority and additional sections.
type Minimal struct{}

func (m *Minimal) parse(p *parser, s statement) {
	p.count(s, 0, 0, "minimal")
	p.body(s, nil)
}
