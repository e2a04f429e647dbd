package config

import (
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Log is `log [NAMES…] [FORMAT] { class … }`. It may stand more than once with the
// same classes; the names add up.
type Log struct {
	// Names are the zones logged; empty means all.
	Names []wire.Name
	// Classes are "success", "denial", "error", in this order; empty means all.
	Classes []string
}

// classes are the values of `class`.
var classes = []string{"success", "denial", "error"}

func (l *Log) parse(p *parser, s statement) {
	args := s.args()
	if n := len(args); n > 0 && strings.Contains(args[n-1].text, "{") {
		l.format(p, args[n-1])
		args = args[:n-1]
	}
	l.Names = p.zones(args)
	if slices.Contains(l.Names, wire.Root) {
		l.Names = nil
	}
	given := make(map[string]bool)
	p.body(s, options{
		"class": {usage: "class CLASSES…", least: 1, most: -1, set: func(args []word) {
			for _, w := range args {
				l.class(p, w, given)
			}
		}},
	})
	for _, class := range classes {
		if given[class] && !given["all"] {
			l.Classes = append(l.Classes, class)
		}
	}
}

func (l *Log) class(p *parser, w word, given map[string]bool) {
	if w.text != "all" && !slices.Contains(classes, w.text) {
		p.unknown(w, "class", append([]string{"all"}, classes...))
		return
	}
	given[w.text] = true
}

// format refuses formats of the user's own. The log is structured and has the
// fields of CoreDNS's two named formats, so those are taken as they are.
func (l *Log) format(p *parser, w word) {
	if w.text != "{common}" && w.text != "{combined}" {
		f := p.fault(w, "the log's format can't be set in this version of nodens: each query is logged as fields; take %q out", w.text)
		f.Allowed = []string{"{combined}", "{common}"}
	}
}

// join adds the names of a further log.
func (l *Log) join(p *parser, s statement, next directive) {
	n := next.(*Log)
	if !slices.Equal(l.Classes, n.Classes) {
		p.fault(s.name(), "this version of nodens has one set of classes for a block; give both logs the same classes")
		return
	}
	if len(l.Names) == 0 || len(n.Names) == 0 {
		l.Names = nil
		return
	}
	l.Names = append(l.Names, n.Names...)
}
