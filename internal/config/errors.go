package config

import (
	"regexp"
	"time"
)

// Errors is `errors [stdout] { stacktrace; consolidate DURATION REGEXP [LEVEL] [show_first] }`.
type Errors struct {
	// Consolidate are the patterns of errors that are logged together; the first that matches
	// an error counts.
	Consolidate []Consolidation
}

// Consolidation is one `consolidate`.
type Consolidation struct {
	Period  time.Duration
	Pattern *regexp.Regexp
	// Level is "error" (the default), "warning", "info" or "debug".
	Level string
	// ShowFirst logs the first error of a period by itself.
	ShowFirst bool
}

const (
	// maxErrorPattern is CoreDNS's limit for a regular expression, in bytes.
	maxErrorPattern = 10000
	// maxErrorPatterns bounds the patterns that an error is compared with.
	maxErrorPatterns = 100

	consolidateUsage = "consolidate DURATION REGEXP [error|warning|info|debug] [show_first]"
)

func (e *Errors) parse(p *parser, s statement) {
	// There is one log: accept the only file that CoreDNS accepts.
	if p.count(s, "errors [stdout]") && len(s.args()) == 1 {
		choice(p, s.args()[0], "log file", map[string]bool{"stdout": true})
	}
	p.body(s,
		opt("stacktrace", func([]token) {}), // panics are always logged with their stack
		opt(consolidateUsage, func(args []token) { e.consolidate(p, args) }),
	)
}

func (e *Errors) consolidate(p *parser, args []token) {
	c := Consolidation{Level: "error"}
	c.Period, _ = p.duration(args[0], time.Millisecond, longest)
	var err error
	if n := len(args[1].text); n > maxErrorPattern {
		p.errorf(args[1], "the regular expression has %d bytes; allowed: up to %d", n, maxErrorPattern)
		return
	}
	if c.Pattern, err = regexp.Compile(args[1].text); err != nil {
		p.errorf(args[1], "%v", err)
	}
	levels := map[string]bool{"error": true, "warning": true, "info": true, "debug": true}
	for i, w := range args[2:] {
		switch {
		case w.text == "show_first":
			c.ShowFirst = true
		case levels[w.text] && i == 0:
			c.Level = w.text
		case levels[w.text]:
			p.errorf(w, "the level may be given once, before show_first; write: %s", consolidateUsage)
		default:
			p.unknown(w, "option", []string{"error", "warning", "info", "debug", "show_first"})
		}
	}
	if len(e.Consolidate) == maxErrorPatterns {
		p.errorf(args[0], "there are more than %d patterns; combine several into one regular expression", maxErrorPatterns)
		return
	}
	e.Consolidate = append(e.Consolidate, c)
}
