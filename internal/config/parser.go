package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/spelling"
	"github.com/nodens-dns/nodens/internal/wire"
)

// parser is the state of parsing: the block of the current directive, the options, and the list
// of errors. A method that finds an error records it and continues, so that one run reports all
// errors.
type parser struct {
	opts  *Options
	block *Block
	// name is the directive being read, option its option, "" outside of one.
	name   string
	option string
	// root is the directory of the block's relative paths, "" for the working directory.
	root  string
	files []string
	texts []file // content of the files outside the Corefile's own text
	errs  []*ParseError
	// warnings are about valid but suspicious settings.
	warnings []string
	// suspicious are valid settings that are probably mistakes. zoneWords are the zones in the
	// arguments of the block's directives.
	suspicious []*ParseError
	zoneWords  []zoneWord
	// notRead are paths that were not read because of Options.OffNode.
	notRead []string
	// firsts holds the first occurrence of each directive in the block.
	firsts map[string]token
}

// option is one option of a directive.
type option struct {
	syntax
	// set reads the arguments.
	set func(args []token)
	// once says that a second one is an error.
	once bool
	// advice, if not empty, means that CoreDNS has the option and this version of
	// nodens doesn't. It says what to do.
	advice string
}

// options are the options of a directive.
type options []option

// opt returns the option whose syntax usage is; see [syntaxOf].
func opt(usage string, set func(args []token)) option {
	return option{syntax: syntaxOf(usage), set: set}
}

// syntax is what may be written after the name of a directive or an option.
type syntax struct {
	name  string
	usage string // as users see it, with the name
	// least and most bound the number of arguments; most -1: no limit.
	least, most int
}

// syntaxOf reads a usage such as "prefetch AMOUNT [DURATION [PERCENT%]]": words in brackets may be missing, a word with … may be
// repeated, and what follows a brace, a parenthesis or, outside of brackets, a bar is not counted.
func syntaxOf(usage string) syntax {
	words := strings.Fields(usage)
	s := syntax{name: words[0], usage: usage}
	depth := 0
	for _, w := range words[1:] {
		if w[0] == '{' || w[0] == '(' || w == "|" && depth == 0 {
			break
		}
		if w == "|" {
			continue
		}
		if depth += strings.Count(w, "["); depth == 0 {
			s.least++
		}
		switch {
		case strings.Contains(w, "…"):
			s.most = -1
		case s.most >= 0:
			s.most++
		}
		depth -= strings.Count(w, "]")
	}
	return s
}

// errorf records an error at w.
func (p *parser) errorf(w token, format string, args ...any) *ParseError {
	f := p.parseError(w, format, args...)
	p.errs = append(p.errs, f)
	return f
}

// parseError returns an error at w, without recording it.
func (p *parser) parseError(w token, format string, args ...any) *ParseError {
	return &ParseError{File: w.file, Line: w.line, Directive: p.name, Option: p.option, Word: w.text, Text: fmt.Sprintf(format, args...)}
}

// warn records a warning at w.
func (p *parser) warn(w token, format string, args ...any) {
	f := &ParseError{File: w.file, Line: w.line, Directive: p.name, Option: p.option, Text: fmt.Sprintf(format, args...)}
	if text := f.Error(); len(p.warnings) < maxErrors && !slices.Contains(p.warnings, text) {
		p.warnings = append(p.warnings, text)
	}
}

// unknown records that w is not one of allowed. what is the kind of word.
func (p *parser) unknown(w token, what string, allowed []string) {
	allowed = slices.Sorted(slices.Values(allowed))
	f := p.errorf(w, "unknown %s %q", what, w.text)
	f.Allowed, f.Nearest = allowed, spelling.Closest(w.text, allowed)
}

// body reads a directive's options.
func (p *parser) body(s statement, table ...option) {
	p.suspectArguments(s, table)
	given := make(map[string]bool)
	for _, line := range s.body {
		name := line.name()
		o := options(table).find(name.text)
		switch {
		case o == nil && len(table) == 0:
			p.errorf(name, "unknown option %q: %s takes no options", name.text, p.name)
		case o == nil:
			p.unknown(name, "option", options(table).names())
		case o.advice != "":
			f := p.errorf(name, "CoreDNS has the option %q, this version of nodens doesn't: %s", name.text, o.advice)
			f.Allowed = options(table).names()
		case line.body != nil:
			p.errorf(name, "%q takes no block in braces; write: %s", name.text, o.usage)
		case p.fits(line, &o.syntax):
			p.option = name.text
			if o.once && given[name.text] {
				p.errorf(line.word(), "%s is in the block twice; keep one", name.text)
			}
			o.set(line.args())
			p.option, given[name.text] = "", true
		}
	}
}

// find returns the option called name, nil if there is none.
func (o options) find(name string) *option {
	if i := slices.IndexFunc(o, func(o option) bool { return o.name == name }); i >= 0 {
		return &o[i]
	}
	return nil
}

// names returns the options that this version supports, sorted.
func (o options) names() []string {
	var names []string
	for i := range o {
		if o[i].advice == "" {
			names = append(names, o[i].name)
		}
	}
	slices.Sort(names)
	return names
}

// flag returns an option without arguments that sets dst.
func flag(name string, dst *bool) option { return opt(name, func([]token) { *dst = true }) }

// replacedBy returns an option of CoreDNS that this version does not support.
func replacedBy(name, advice string) option {
	return option{syntax: syntax{name: name}, advice: advice}
}

// ignoredUpstream is an option that CoreDNS ignores: the server always resolves targets of aliases itself.
func ignoredUpstream() option {
	return option{syntax: syntax{name: "upstream", usage: "upstream", most: -1}, set: func([]token) {}}
}

// onOff are the values of options that are on or off.
var onOff = map[string]bool{"on": true, "off": false}

// toDuration returns an option's set, which reads a duration from least to most.
func (p *parser) toDuration(dst *time.Duration, least, most time.Duration) func([]token) {
	return func(args []token) { *dst, _ = p.duration(args[0], least, most) }
}

// toNumber returns an option's set, which reads an integer from least to most.
func toNumber[T ~int | ~int64 | ~uint32](p *parser, dst *T, least, most int64) func([]token) {
	return func(args []token) {
		n, _ := p.number(args[0], least, most)
		*dst = T(n)
	}
}

// toChoice returns an option's set, which looks up a word in table.
func toChoice[T any](p *parser, dst *T, what string, table map[string]T) func([]token) {
	return func(args []token) { *dst, _ = choice(p, args[0], what, table) }
}

// toZones returns an option's set, which adds zones.
func (p *parser) toZones(dst *[]wire.Name) func([]token) {
	return func(args []token) { *dst = append(*dst, p.zones(args)...) }
}

// toText returns an option's set, which reads the words as one text.
func toText(dst *string) func([]token) {
	return func(args []token) { *dst = strings.Join(texts(args), " ") }
}

// count reports whether s has as many arguments as usage says (see [syntaxOf]), and records an error if not.
func (p *parser) count(s statement, usage string) bool {
	form := syntaxOf(usage)
	return p.fits(s, &form)
}

// fits reports whether s has as many arguments as form says, and records an error if not.
func (p *parser) fits(s statement, form *syntax) bool {
	n := len(s.args())
	switch {
	case n < form.least:
		p.errorf(s.name(), "an argument is missing after %q; write: %s", s.name().text, form.usage)
	case form.most >= 0 && n > form.most:
		at := s.args()[form.most]
		p.errorf(at, "%q is one argument too many after %q; write: %s", at.text, s.name().text, form.usage)
	default:
		return true
	}
	return false
}

// duration parses a duration from least to most.
func (p *parser) duration(w token, least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(w.text)
	if err != nil {
		p.errorf(w, "%q is not a duration such as 500ms, 30s or 1m30s", w.text)
		return 0, false
	}
	if d < least || d > most {
		p.errorf(w, "%s is out of range; allowed: %s to %s", w.text, least, most)
		return 0, false
	}
	return d, true
}

// number parses an integer from least to most.
func (p *parser) number(w token, least, most int64) (int64, bool) {
	n, err := strconv.ParseInt(w.text, 10, 64)
	if err != nil {
		p.errorf(w, "%q is not a whole number; allowed: %d to %d", w.text, least, most)
		return 0, false
	}
	if n < least || n > most {
		p.errorf(w, "%d is out of range; allowed: %d to %d", n, least, most)
		return 0, false
	}
	return n, true
}

// choice looks up a word in table.
func choice[T any](p *parser, w token, what string, table map[string]T) (v T, ok bool) {
	if v, ok = table[w.text]; !ok {
		p.unknown(w, what, slices.Collect(maps.Keys(table)))
	}
	return v, ok
}

// listen parses a host:port for an HTTP server. The host may be a name or empty (all
// addresses); the port is a number.
func (p *parser) listen(w token) (string, bool) {
	_, port, err := net.SplitHostPort(w.text)
	if err != nil {
		p.errorf(w, "%q is not an address with a port such as 127.0.0.1:8080 or :8080", w.text)
		return "", false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.errorf(w, "%q has a bad port; allowed: 0 to 65535", w.text)
		return "", false
	}
	return w.text, true
}

// listenArgument is listen for the one argument that s may have; addr is the default.
func (p *parser) listenArgument(s statement, usage, addr string) string {
	if p.count(s, usage) && len(s.args()) == 1 {
		addr, _ = p.listen(s.args()[0])
	}
	return addr
}

// zones parses zones: names, or CIDRs for their reverse zones. It returns nil if words is nil.
func (p *parser) zones(words []token) []wire.Name {
	p.suspectZones(words)
	var zones []wire.Name
	for _, w := range words {
		key, err := parseKey(w.text)
		if err != nil {
			p.errorf(w, "%v", err)
			continue
		}
		for _, zone := range key.zones {
			if !slices.Contains(zones, zone) {
				zones = append(zones, zone)
			}
		}
	}
	return zones
}

// zonesOr is [parser.zones]; without words it returns the block's zones.
func (p *parser) zonesOr(words []token) []wire.Name {
	if len(words) == 0 {
		return slices.Clone(p.block.Zones)
	}
	return p.zones(words)
}

// texts returns the texts of words.
func texts(words []token) []string {
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = w.text
	}
	return list
}

// allTexts returns the values as texts.
func allTexts[T fmt.Stringer](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return list
}
