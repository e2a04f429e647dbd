package config

// Local is `local { localhost_prefix on|off }`: localhost and other names of the machine are
// answered locally.
type Local struct {
	// Prefix: names that only begin with the label localhost are such names as well.
	Prefix bool // true by default
}

func (l *Local) parse(p *parser, s statement) {
	l.Prefix = true
	p.count(s, "local")
	p.body(s, opt("localhost_prefix on|off", toChoice(p, &l.Prefix, "value", onOff)))
}
