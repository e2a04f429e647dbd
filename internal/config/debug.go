package config

// Debug is `debug`: lines of the lowest level are logged. In one block it is for the
// whole process.
type Debug struct{}

func (*Debug) parse(p *parser, s statement) {
	p.body(s, nil)
	p.count(s, 0, 0, "debug")
}
