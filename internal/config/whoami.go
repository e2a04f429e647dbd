package config

// Whoami is `whoami`: queries that no other directive answers are answered with the client's
// address and port.
type Whoami struct{}

func (w *Whoami) parse(p *parser, s statement) {
	p.count(s, 0, 0, "whoami")
	p.body(s, nil)
}
