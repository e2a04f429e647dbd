package config

// Errors is `errors [stdout] { stacktrace }`.
type Errors struct{}

func (*Errors) parse(p *parser, s statement) {
	// The log has one place to go, so the one file CoreDNS takes is accepted.
	if p.count(s, 0, 1, "errors [stdout]") && len(s.args()) == 1 {
		choice(p, s.args()[0], "log file", map[string]bool{"stdout": true})
	}
	p.body(s, options{
		// The log of a panic always has its stack.
		"stacktrace":  {usage: "stacktrace", set: func([]word) {}},
		"consolidate": later("each error is logged by itself; take the line out"),
	})
}
