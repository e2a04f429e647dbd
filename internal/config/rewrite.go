package config

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Rewrite is `rewrite [continue|stop] FIELD …`: all rules of a block, in order.
type Rewrite struct {
	Rules []RewriteRule // never empty
}

// RewriteField is the field that a rule changes.
type RewriteField uint8

// The fields.
const (
	RewriteName RewriteField = iota + 1
	RewriteType
	RewriteClass
	RewriteTTL
	RewriteRcode
	RewriteCNAME
	RewriteEDNS0
)

// RewriteRule is one rule.
type RewriteRule struct {
	Field RewriteField
	// Continue applies the next rule even if this one matches.
	Continue bool
	// Match is for the qname; for RewriteCNAME it is for the
	// targets. It is unused for types and classes.
	Match NameMatch
	// To is the new name or target in presentation form: all of it, or
	// the replacement for the match, with {0}, {1} … for the groups of a pattern.
	To string
	// Auto: names in the reply are rewritten back.
	Auto bool
	// Answers are further rules for names in the reply, in order.
	Answers []RewriteAnswer
	// FromCode and ToCode are types, classes or rcodes.
	FromCode, ToCode uint16
	// MinTTL and MaxTTL are in seconds.
	MinTTL, MaxTTL uint32
	// Expand is the new name of a rule with `metadata`, in parts; To is empty then.
	Expand []NamePart
	// Option is what RewriteEDNS0 changes.
	Option OptionRule
}

func (r *Rewrite) needsAgent() bool { return !r.QuestionOnly() }

// QuestionOnly reports whether the question alone decides which rules match: none is about EDNS options or metadata.
func (r *Rewrite) QuestionOnly() bool {
	return !slices.ContainsFunc(r.Rules, func(r RewriteRule) bool { return r.Field == RewriteEDNS0 || r.Expand != nil })
}

// RewriteAnswer is `answer name|value FROM TO`.
type RewriteAnswer struct {
	// Value: the rule is for names in RDATA, not for owners.
	Value   bool
	Pattern *regexp.Regexp
	To      string
}

// MatchKind is how a name is compared with a text.
type MatchKind uint8

// The kinds. The default is exact.
const (
	MatchExact MatchKind = iota
	MatchPrefix
	MatchSuffix
	MatchSubstring
	MatchRegex
)

// matchKinds are the kinds by name.
var matchKinds = map[string]MatchKind{
	"exact": MatchExact, "prefix": MatchPrefix, "suffix": MatchSuffix, "substring": MatchSubstring, "regex": MatchRegex,
}

// NameMatch matches names in presentation form with the trailing dot.
type NameMatch struct {
	Kind MatchKind
	// Text is the text to match, in lower case; "" for a pattern.
	Text string
	// Pattern is nil for all kinds but MatchRegex.
	Pattern *regexp.Regexp
}

const (
	// maxRules bounds the rules of a block; each query is compared with all of them. As many
	// patterns take about a millisecond.
	maxRules = 1000
	// maxPattern is CoreDNS's limit for a pattern, in bytes. It bounds the memory of a compiled
	// pattern.
	maxPattern   = 10000
	rewriteUsage = "rewrite [continue|stop] name|type|class|ttl|rcode|cname|edns0 [exact|prefix|suffix|substring|regex] FROM TO"
)

// rewriteParser parses one rule: its words after the field, and the position for errors about
// missing words.
type rewriteParser struct {
	p    *parser
	at   token
	args []token
	rule *RewriteRule
}

func (x *Rewrite) parse(p *parser, s statement) {
	words := s.args()
	switch {
	case len(words) >= 2 && s.body != nil:
		p.errorf(s.name(), "a rule that is whole takes no block in braces; write each rule as a rewrite of its own")
		return
	case len(words) < 2:
		words = slices.Clone(words)
		for _, line := range s.body {
			if line.body != nil {
				p.errorf(line.name(), "%q takes no block in braces; write: %s", line.name().text, rewriteUsage)
				return
			}
			words = append(words, line.words...)
		}
	}
	r := rewriteParser{p: p, at: s.name(), args: words, rule: &RewriteRule{}}
	r.read()
	x.Rules = []RewriteRule{*r.rule}
}

// join appends a further rule.
func (x *Rewrite) join(p *parser, s statement, next directive) {
	x.Rules = append(x.Rules, next.(*Rewrite).Rules...)
	if len(x.Rules) == maxRules+1 {
		p.errorf(s.name(), "a block has more than %d rewrites; make one regex of those that are alike, or a server block for each zone", maxRules)
	}
}

// rewriteFields are the fields by name.
var rewriteFields = map[string]func(*rewriteParser){
	"name":  (*rewriteParser).names,
	"type":  (*rewriteParser).types,
	"class": (*rewriteParser).classes,
	"ttl":   (*rewriteParser).ttl,
	"rcode": (*rewriteParser).rcodes,
	"cname": (*rewriteParser).cname,
	"edns0": (*rewriteParser).edns0,
}

// read parses the whole rule.
func (r *rewriteParser) read() {
	if len(r.args) > 0 {
		switch strings.ToLower(r.args[0].text) {
		case "continue":
			r.rule.Continue = true
			r.args = r.args[1:]
		case "stop":
			r.args = r.args[1:]
		}
	}
	if len(r.args) == 0 {
		r.p.errorf(r.at, "the field to rewrite is missing; write: %s", rewriteUsage)
		return
	}
	field := r.args[0]
	r.at, r.args = field, r.args[1:]
	name := strings.ToLower(field.text)
	if name == "answer" {
		r.p.errorf(field, "an answer is rewritten behind a name; write: rewrite name [TYPE] FROM TO answer …")
		return
	}
	read, ok := rewriteFields[name]
	if !ok {
		r.p.unknown(field, "field", slices.Collect(maps.Keys(rewriteFields)))
		return
	}
	r.p.option = name
	read(r)
	r.p.option = ""
}

// has reports whether the rule has least to most words after its field, and records an error if
// not.
func (r *rewriteParser) has(least, most int, usage string) bool {
	switch n := len(r.args); {
	case n < least:
		r.p.errorf(r.at, "an argument is missing; write: %s", usage)
	case n > most:
		r.p.errorf(r.args[most], "%q is one argument too many; write: %s", r.args[most].text, usage)
	default:
		return true
	}
	return false
}

// match parses the kind, if there is one before the last values words, and the text to match.
func (r *rewriteParser) match(values int) bool {
	kind := MatchExact
	if len(r.args) > values+1 {
		name := token{text: strings.ToLower(r.args[0].text), file: r.args[0].file, line: r.args[0].line}
		var ok bool
		if kind, ok = choice(r.p, name, "type of match", matchKinds); !ok {
			return false
		}
		r.args = r.args[1:]
	}
	from := r.args[0]
	r.args = r.args[1:]
	r.rule.Match.Kind = kind
	if kind == MatchRegex {
		r.rule.Match.Pattern = r.p.pattern(from)
		return r.rule.Match.Pattern != nil
	}
	r.rule.Match.Text = canonical(from.text)
	return r.name(kind, from)
}

// name records an error if a rule of this kind needs a name and w is not one.
func (r *rewriteParser) name(kind MatchKind, w token) bool {
	if kind != MatchExact {
		return true
	}
	_, err := wire.ParseName(w.text)
	if err != nil {
		r.p.errorf(w, "%v", err)
	}
	return err == nil
}

// canonical returns a name, or a part of one, in lower case and with the trailing dot.
func canonical(text string) string { return strings.ToLower(wire.FullyQualified(text)) }

// pattern compiles a regular expression. It records an error and returns nil if w is not one.
func (p *parser) pattern(w token) *regexp.Regexp {
	if len(w.text) > maxPattern {
		p.errorf(token{file: w.file, line: w.line}, "the pattern has %d bytes; allowed: up to %d", len(w.text), maxPattern)
		return nil
	}
	re, err := regexp.Compile(w.text)
	if err != nil {
		p.errorf(w, "%q is no regular expression of Go's (RE2): %v", w.text, err)
	}
	return re
}

// groupRef is a reference to a group of a pattern.
var groupRef = regexp.MustCompile(`\{[0-9]+\}`)

// replaces parses the replacement for a match of from. from is nil if the rule has no pattern.
func (r *rewriteParser) replaces(w token, from *regexp.Regexp) (to string) {
	if from == nil {
		return canonical(w.text)
	}
	for _, ref := range groupRef.FindAllString(w.text, -1) {
		n, err := strconv.Atoi(ref[1 : len(ref)-1])
		if err != nil || n > from.NumSubexp() {
			r.p.errorf(w, "%s names a group that the pattern %q, which has %d, doesn't have", ref, from, from.NumSubexp())
		}
	}
	return canonical(w.text)
}

const nameUsage = "rewrite [continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [metadata] [answer auto|answer name FROM TO|answer value FROM TO]"

// names parses `name [TYPE] FROM TO [answer …]`.
func (r *rewriteParser) names() {
	if !r.has(2, math.MaxInt, nameUsage) {
		return
	}
	r.rule.Field = RewriteName
	rest := r.args[min(3, len(r.args)):]
	r.args = r.args[:len(r.args)-len(rest)]
	if !r.match(1) {
		return
	}
	to := r.args[0]
	if len(rest) > 0 && rest[0].text == "metadata" {
		r.expands(to, rest[0])
		rest = rest[1:]
	} else {
		r.rule.To = r.replaces(to, r.rule.Match.Pattern)
	}
	r.name(r.rule.Match.Kind, to)
	r.rule.Auto = r.rule.Match.Kind == MatchExact
	r.args = rest
	r.answers()
}

// answers parses the words after a name rule: `answer auto|name FROM TO|value FROM TO`. Only
// the first needs the word answer.
func (r *rewriteParser) answers() {
	auto, named := false, false
	for first := true; len(r.args) > 0; first = false {
		kind, ok := r.kind(first)
		if !ok || kind.text != "auto" && !r.answer(kind) {
			return
		}
		auto = auto || kind.text == "auto"
		named = named || kind.text == "name"
	}
	if auto && named {
		r.p.errorf(r.at, "answer auto and answer name say the same thing twice; keep one")
	}
	r.rule.Auto = r.rule.Auto || auto
}

// kind parses `[answer] auto|name|value`. first requires the word answer.
func (r *rewriteParser) kind(first bool) (kind token, ok bool) {
	switch w := r.args[0]; {
	case w.text == "answer":
		r.args = r.args[1:]
	case first:
		r.p.errorf(w, "%q stands where only answer may; write: %s", w.text, nameUsage)
		return w, false
	}
	if len(r.args) == 0 {
		r.p.errorf(r.at, "auto, name or value is missing behind answer; write: %s", nameUsage)
		return kind, false
	}
	kind, r.args = r.args[0], r.args[1:]
	_, ok = choice(r.p, kind, "answer", map[string]bool{"auto": true, "name": true, "value": true})
	return kind, ok
}

// answer parses FROM TO after kind.
func (r *rewriteParser) answer(kind token) bool {
	if len(r.args) < 2 {
		r.p.errorf(kind, "an argument is missing behind %q; write: answer %s FROM TO", kind.text, kind.text)
		return false
	}
	from := r.p.pattern(r.args[0])
	if from == nil {
		return false
	}
	r.rule.Answers = append(r.rule.Answers, RewriteAnswer{
		Value: kind.text == "value", Pattern: from, To: r.replaces(r.args[1], from),
	})
	r.args = r.args[2:]
	return true
}

// types parses `type FROM TO`.
func (r *rewriteParser) types() {
	if r.has(2, 2, "rewrite [continue|stop] type FROM TO") {
		r.rule.Field = RewriteType
		r.rule.FromCode = r.code(r.args[0], "type", wire.ParseType)
		r.rule.ToCode = r.code(r.args[1], "type", wire.ParseType)
	}
}

// classes parses `class FROM TO`.
func (r *rewriteParser) classes() {
	if !r.has(2, 2, "rewrite [continue|stop] class FROM TO") {
		return
	}
	r.rule.Field = RewriteClass
	r.rule.FromCode = r.code(r.args[0], "class", wire.ParseClass)
	r.rule.ToCode = r.code(r.args[1], "class", wire.ParseClass)
	if r.rule.ToCode != wire.ClassIN {
		r.p.errorf(r.args[1], "only the class IN is served, a query of the class %s is REFUSED; write: rewrite class %s IN", r.args[1].text, r.args[0].text)
	}
}

// code parses a type or a class by its name.
func (r *rewriteParser) code(w token, what string, parse func(string) (uint16, bool)) uint16 {
	v, ok := parse(w.text)
	if !ok {
		r.p.errorf(w, "%q is no %s of DNS such as %s", w.text, what, map[string]string{"type": "A, AAAA or HINFO", "class": "IN or CH"}[what])
	}
	return v
}

// ttl parses `ttl [TYPE] FROM SECONDS|MIN-MAX`.
func (r *rewriteParser) ttl() {
	const usage = "rewrite [continue|stop] ttl [exact|prefix|suffix|substring|regex] NAME SECONDS|MIN-MAX|MIN-|-MAX"
	if !r.has(2, 3, usage) || !r.match(1) {
		return
	}
	r.rule.Field = RewriteTTL
	r.rule.MinTTL, r.rule.MaxTTL = r.p.ttls(r.args[0])
}

// ttls parses SECONDS or a range, which may be open at one end.
func (p *parser) ttls(w token) (least, most uint32) {
	low, high, ranged := strings.Cut(w.text, "-")
	switch {
	case !ranged:
		high = low
	case low == "" && high != "":
		low = "0"
	case high == "" && low != "":
		high = strconv.Itoa(math.MaxInt32)
	}
	a, err1 := strconv.ParseUint(low, 10, 32)
	b, err2 := strconv.ParseUint(high, 10, 32)
	if err1 != nil || err2 != nil || a > b {
		p.errorf(w, "%q is no TTL in seconds such as 30, 30-300, 30- or -300", w.text)
	}
	return uint32(a), uint32(b)
}

// rcodes parses `rcode [TYPE] NAME FROM TO`.
func (r *rewriteParser) rcodes() {
	if !r.has(3, 4, "rewrite [continue|stop] rcode [exact|prefix|suffix|substring|regex] NAME FROM TO") || !r.match(2) {
		return
	}
	r.rule.Field = RewriteRcode
	r.rule.FromCode, r.rule.ToCode = r.p.rcode(r.args[0]), r.p.rcode(r.args[1])
}

// maxRcode is the last rcode with a name (BADCOOKIE).
const maxRcode = 23

// rcode parses an rcode, given by name or number.
func (p *parser) rcode(w token) uint16 {
	if n, err := strconv.ParseUint(w.text, 10, 16); err == nil && n <= maxRcode {
		return uint16(n)
	}
	n, ok := wire.ParseRcode(w.text)
	if !ok {
		p.errorf(w, "%q is no rcode such as NOERROR, SERVFAIL, NXDOMAIN or REFUSED, or its number, 0 to %d", w.text, maxRcode)
	}
	return uint16(n)
}

// cname parses `cname [TYPE] FROM TO`.
func (r *rewriteParser) cname() {
	if !r.has(2, 3, "rewrite [continue|stop] cname [exact|prefix|suffix|substring|regex] FROM TO") {
		return
	}
	from := r.args[len(r.args)-2]
	if !r.match(1) {
		return
	}
	r.rule.Field = RewriteCNAME
	r.rule.To = strings.ToLower(r.args[0].text)
	switch m := &r.rule.Match; m.Kind {
	case MatchExact:
		r.rule.To = canonical(r.args[0].text)
		r.name(MatchExact, r.args[0])
	case MatchRegex: // targets come in any case
		r.replaces(r.args[0], m.Pattern)
		if re, err := regexp.Compile("(?i)" + from.text); err == nil {
			m.Pattern = re
		}
	default:
		m.Text = strings.ToLower(from.text)
	}
}
