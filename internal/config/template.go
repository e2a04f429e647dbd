package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Template is `template CLASS TYPE [ZONES…] { … }`. A block may have several: the first one
// whose type and patterns match the query answers.
type Template struct {
	// Type is the qtype, [wire.TypeANY] for all.
	Type  uint16
	Zones []wire.Name // the block's zones by default
	// Match are patterns for the qname, in presentation form and lower case with the trailing
	// dot, in order; empty matches all.
	Match []*regexp.Regexp
	// Answer, Additional and Authority make one record each.
	Answer, Additional, Authority []*template.Template
	Rcode                         wire.Rcode
	// EDE is the extended error of the reply, nil for none.
	EDE         *ExtendedError
	Fallthrough *Fallthrough
	// Script are the variables and conditions, nil for none.
	Script *expression.Script
	// Next is the next template of the same block, nil for the last.
	Next *Template
}

func (*Template) needsAgent() bool { return true }

// ExtendedError is `ederror CODE [TEXT]` (RFC 8914).
type ExtendedError struct {
	Code uint16
	Text string
}

const (
	// maxTemplates bounds the templates of a block; each query is compared with all of them. As
	// many patterns take about a millisecond.
	maxTemplates = 1000
	// maxMade bounds the records of one template in a section: about as many as fit into a
	// reply.
	maxMade       = 1000
	templateUsage = "template CLASS TYPE [ZONES…] { … }"
)

func (t *Template) parse(p *parser, s statement) {
	if !p.count(s, templateUsage) {
		return
	}
	t.class(p, s.args()[0])
	kind := s.args()[1]
	var ok bool
	if t.Type, ok = wire.ParseType(kind.text); !ok {
		p.errorf(kind, "%q is no type of DNS such as A, AAAA or MX, or ANY for all; write: %s", kind.text, templateUsage)
	}
	t.Zones = p.zonesOr(s.args()[2:])
	p.body(s, t.options(p)...)
}

// class parses CLASS. Queries of other classes than IN do not reach templates.
func (t *Template) class(p *parser, w token) {
	switch class, ok := wire.ParseClass(w.text); {
	case !ok:
		p.errorf(w, "%q is no class of DNS; write IN, or ANY for all; %s", w.text, templateUsage)
	case class != wire.ClassIN && class != wire.ClassANY:
		p.errorf(w, "only the class IN is served, a query of the class %s is REFUSED; write IN", w.text)
	}
}

func (t *Template) options(p *parser) options {
	return options{
		opt("match REGEX…", func(args []token) {
			for _, w := range args {
				if re := p.pattern(w); re != nil {
					t.Match = append(t.Match, re)
				}
			}
		}),
		p.templateOption("answer", &t.Answer),
		p.templateOption("additional", &t.Additional),
		p.templateOption("authority", &t.Authority),
		opt("rcode CODE", func(args []token) { t.Rcode = wire.Rcode(p.rcode(args[0])) }),
		opt("ederror CODE [TEXT]", func(args []token) {
			n, _ := p.number(args[0], 0, 65535)
			t.EDE = &ExtendedError{Code: uint16(n)}
			if len(args) == 1 {
				return
			}
			if t.EDE.Text = args[1].text; len(t.EDE.Text) > wire.MaxEDEText {
				p.errorf(args[1], "the text has %d bytes; allowed: up to %d", len(t.EDE.Text), wire.MaxEDEText)
			}
		}),
		p.fallthroughs(&t.Fallthrough),
		ignoredUpstream(),
		opt("var NAME EXPRESSION…", func(args []token) {
			t.script(p, args[1:], func(s *expression.Script, text string) error { return s.AddVariable(args[0].text, text) })
		}),
		opt("expr EXPRESSION…", func(args []token) { t.script(p, args, (*expression.Script).AddCondition) }),
	}
}

// script adds the expression that words make to t's script.
func (t *Template) script(p *parser, words []token, add func(s *expression.Script, text string) error) {
	if t.Script == nil {
		t.Script = new(expression.Script)
	}
	if t.Script.Len() == maxExpressions {
		p.errorf(words[0], "the template has more than %d variables and expressions; join some", maxExpressions)
		return
	}
	text := strings.Join(texts(words), " ")
	if err := add(t.Script, text); err != nil {
		p.errorf(token{text: text, file: words[0].file, line: words[0].line}, "%q: %v", text, err)
	}
}

// templateOption returns an option whose arguments are templates of one record each.
func (p *parser) templateOption(name string, dst *[]*template.Template) option {
	return opt(name+" RECORD…", func(args []token) {
		for _, w := range args {
			made, err := template.New(name).Funcs(template.FuncMap{"parseInt": strconv.ParseUint}).Parse(w.text)
			if err != nil {
				p.errorf(w, "%q is no template of Go's text/template: %v", w.text, err)
				continue
			}
			*dst = append(*dst, made)
		}
		if len(*dst) > maxMade {
			*dst = (*dst)[:maxMade]
			p.errorf(args[0], "a template has more than %d records in a section; a reply holds no more", maxMade)
		}
	})
}

func (t *Template) next() **Template { return &t.Next }

// join appends a further template to the chain.
func (t *Template) join(p *parser, s statement, more directive) {
	extend(p, s, t, more.(*Template), maxTemplates, "templates; write a server block for each zone")
}

// All returns the templates of a block in order; none if t is nil.
func (t *Template) All() []*Template { return slices.Clip(slices.Collect(chain(t))) }
