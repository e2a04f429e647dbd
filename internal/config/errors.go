package config

// Errors is `errors [stdout] { stacktrace }`.
type Errors struct {
	// Stacktrace is whether the log of a panic in a query carries its stack.
	Stacktrace bool
}

func (e *Errors) parse(p *parser, s statement) {
	// The log has one place to go, so the one file CoreDNS takes is accepted.
	if p.count(s, 0, 1, "errors [stdout]") && len(s.args()) == 1 {
		choice(p, s.args()[0], "log file", map[string]bool{"stdout": true})
	}
	p.body(s, options{
		"stacktrace":  flag("stacktrace", &e.Stacktrace),
		"consolidate": later("each error is logged by itself; take the line out"),
	})
}
