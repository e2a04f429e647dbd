package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
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
	// usage is the syntax, including the option's name.
	usage string
	// least and most bound the number of arguments; most -1: no limit.
	least, most int
	// set reads the arguments.
	set func(args []token)
	// advice, if not empty, means that CoreDNS has the option and this version of
	// nodens doesn't. It says what to do.
	advice string
}

// options are a directive's options by name.
type options map[string]option

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
func (p *parser) body(s statement, table options) {
	p.suspectArguments(s, table)
	for _, line := range s.body {
		name := line.name()
		o, ok := table[name.text]
		switch {
		case !ok && len(table) == 0:
			p.errorf(name, "unknown option %q: %s takes no options", name.text, p.name)
		case !ok:
			p.unknown(name, "option", table.names())
		case o.advice != "":
			f := p.errorf(name, "CoreDNS has the option %q, this version of nodens doesn't: %s", name.text, o.advice)
			f.Allowed = table.names()
		case line.body != nil:
			p.errorf(name, "%q takes no block in braces; write: %s", name.text, o.usage)
		case p.count(line, o.least, o.most, o.usage):
			p.option = name.text
			o.set(line.args())
			p.option = ""
		}
	}
}

// names returns the options that this version supports.
func (o options) names() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if o[name].advice == "" {
			names = append(names, name)
		}
	}
	return names
}

// flag returns an option without arguments that sets dst.
func flag(name string, dst *bool) option {
	return option{usage: name, set: func([]token) { *dst = true }}
}

// replacedBy returns an option of CoreDNS that this version does not support.
func replacedBy(advice string) option { return option{advice: advice} }

// count reports whether s has least to most arguments, and records an error if not.
func (p *parser) count(s statement, least, most int, usage string) bool {
	if n := len(s.args()); n >= least && (most < 0 || n <= most) {
		return true
	}
	at, what := s.name(), "an argument is missing"
	if len(s.args()) > least {
		at = s.words[most+1]
		what = fmt.Sprintf("%q is one argument too many", at.text)
	}
	p.errorf(at, "%s after %q; write: %s", what, s.name().text, usage)
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
