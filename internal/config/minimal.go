package config

// Minimal is `minimal`: what has answers has nothing else.
type Minimal struct{}

func (m *Minimal) parse(p *parser, s statement) {
	p.count(s, 0, 0, "minimal")
	p.body(s, nil)
}
