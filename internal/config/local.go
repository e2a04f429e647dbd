package config

// Local is `local { localhost_prefix on|off }`: localhost and other names of the machine are
// answered locally.
type Local struct {
	// Prefix: names that only begin with the label localhost are such names as well.
	Prefix bool // true by default
}

func (l *Local) parse(p *parser, s statement) {
	l.Prefix = true
	p.count(s, 0, 0, "local")
	p.body(s, options{
		"localhost_prefix": {usage: "localhost_prefix on|off", least: 1, most: 1, set: func(args []token) {
			if on, ok := choice(p, args[0], "value", map[string]bool{"on": true, "off": false}); ok {
				l.Prefix = on
			}
		}},
	})
}
