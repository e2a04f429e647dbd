package scenario

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// What a file may hold at most. The limits are far above what anybody writes and far
// below what would make a test run for minutes.
const (
	maxSize      = 64 << 10 // bytes of a file; a scenario is a page or two
	maxUpstreams = 20       // one more than the forward directive takes, with room
	maxTimes     = 2000     // queries of one step; their sockets stay below the usual 4096 files
	maxMany      = 4000     // address records of 16 bytes: a message holds 65,535
	maxChain     = 200      // CNAME records; the agent follows sixteen
	maxFaults    = 10       // errors that are reported of one file
)

// Parse reads the scenario in text, which is not changed; file is what errors call it.
// The error joins one for each line at fault: "FILE:LINE: what is wrong; write: …".
func Parse(file string, body []byte) (*Scenario, error) {
	if len(body) > maxSize {
		return nil, fmt.Errorf("%s:1: the file has %d bytes, the most is %d", file, len(body), maxSize)
	}
	p := &parser{sc: &Scenario{File: file}, lines: strings.Split(string(body), "\n")}
	p.table = p.keywords()
	for p.at < len(p.lines) && len(p.faults) < maxFaults {
		p.at++
		p.line = p.at
		p.statement(p.lines[p.at-1])
	}
	if len(p.faults) == 0 {
		p.whole()
	}
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return p.sc, nil
}

// Load is Parse of the file at path.
func Load(path string) (*Scenario, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a scenario: %w", err)
	}
	return Parse(path, body)
}

// parser is where Parse is in a file.
type parser struct {
	sc     *Scenario
	lines  []string
	at     int // the lines read
	line   int // where the statement began
	table  map[string]keyword
	faults []error

	// What the next line may belong to; nil for nothing.
	up     *Upstream
	rule   *rule
	expect *expect
	// uses are checks to be made when all upstreams are known.
	uses []use
}

// use is an upstream or a query in the background that a step speaks of.
type use struct {
	line  int
	name  string
	query bool
}

// keyword is what may begin a line: how it is written, and what it means.
type keyword struct {
	usage string
	parse func(w *tokens)
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf("%s:%d: %w", p.sc.File, line, fmt.Errorf(format, args...)))
}

func (p *parser) statement(line string) {
	list := strings.Fields(line)
	if len(list) == 0 || strings.HasPrefix(list[0], "#") {
		return
	}
	k, ok := p.table[list[0]]
	if !ok {
		p.fault(p.line, "%q begins no statement; one begins with %s", list[0], strings.Join(p.known(), ", "))
		return
	}
	w := &tokens{list: list[1:], usage: list[0]}
	if k.usage != "" {
		w.usage += " " + k.usage
	}
	k.parse(w)
	w.end()
	if w.err != nil {
		p.fault(p.line, "%w", w.err)
	}
}

func (p *parser) known() (names []string) {
	for name := range p.table {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// body takes the lines up to END.
func (p *parser) body(w *tokens) text {
	t := text{line: p.at + 1}
	for i := p.at; i < len(p.lines); i++ {
		if strings.TrimSpace(p.lines[i]) != "END" {
			continue
		}
		t.body = strings.Join(p.lines[p.at:i], "\n") + "\n"
		p.at = i + 1
		return t
	}
	p.at = len(p.lines)
	w.fail("the line END is missing")
	return t
}

// rest takes all words that are left as one.
func (p *parser) rest(w *tokens, what string) string {
	if !w.more() {
		w.fail("%s is missing", what)
	}
	s := strings.Join(w.list, " ")
	w.list = nil
	return s
}

// whole checks what no line alone can tell.
func (p *parser) whole() {
	switch {
	case p.sc.Title == "":
		p.fault(1, "the title is missing; write: TITLE what the scenario shows")
	case p.sc.Corefile.line == 0:
		p.fault(1, "the Corefile is missing; write: COREFILE, its lines, END")
	case len(p.sc.Steps) == 0 && p.sc.Refused == "":
		p.fault(p.at, "nothing happens; write steps such as QUERY and EXPECT, or REFUSED")
	}
	for _, u := range p.uses {
		switch {
		case u.query && !p.labelled(u.name):
			p.fault(u.line, "no QUERY is made as %s", u.name)
		case !u.query && p.upstream(u.name) == nil:
			p.fault(u.line, "there is no UPSTREAM %s", u.name)
		}
	}
}

// labelled reports whether a query is made under the label.
func (p *parser) labelled(label string) bool {
	return slices.ContainsFunc(p.sc.Steps, func(s scenarioStep) bool {
		q, ok := s.step.(*query)
		return ok && q.label == label
	})
}

func (p *parser) upstream(name string) *Upstream {
	for _, u := range p.sc.Upstreams {
		if u.Name == name {
			return u
		}
	}
	return nil
}

// add appends a step.
func (p *parser) add(s step) {
	p.up, p.rule, p.expect = nil, nil, nil
	p.sc.Steps = append(p.sc.Steps, scenarioStep{p.line, s})
}

// keywords is the table of what may begin a line.
func (p *parser) keywords() map[string]keyword {
	table := map[string]keyword{
		"TITLE":    {"what the scenario shows", func(w *tokens) { p.sc.Title = p.rest(w, "a title") }},
		"NEEDS":    {"FEATURE…", func(w *tokens) { p.sc.Needs = append(p.sc.Needs, w.list...); w.list = nil }},
		"ARGS":     {"-NAME=VALUE…", func(w *tokens) { p.sc.Flags = append(p.sc.Flags, w.list...); w.list = nil }},
		"REFUSED":  {"TEXT of the error with which the agent does not start", func(w *tokens) { p.sc.Refused = p.rest(w, "a text") }},
		"COREFILE": {"and its lines, and END", func(w *tokens) { w.end(); p.sc.Corefile = p.body(w) }},
		"FILE":     {"NAME and its lines, and END", p.file},
		"UPSTREAM": {"NAME [port N] [tls|https|quic] [expired|unknown|for NAME]", p.server},
		"ON":       {"NAME|*|*.NAME TYPE|* [over TRANSPORT] [times N] [with edns|do|cd|rd|nsid] [without …]", p.on},
	}
	for i, name := range sectionNames {
		table[name] = keyword{"OWNER TTL TYPE RDATA", func(w *tokens) { p.record(w, i) }}
	}
	p.actions(table)
	p.steps(table)
	return table
}

// file is a document, and as a step one that is written then.
func (p *parser) file(w *tokens) {
	name := w.next("a name")
	if strings.ContainsAny(name, "/\\") || strings.HasPrefix(name, ".") {
		w.fail("%q is no plain file name", name)
	}
	w.end()
	d := scenarioFile{name, p.body(w)}
	if len(p.sc.Steps) > 0 {
		p.add(&write{d})
		return
	}
	p.sc.Files = append(p.sc.Files, d)
}

// server begins an upstream.
func (p *parser) server(w *tokens) {
	u := &Upstream{Name: w.next("a name"), line: p.line}
	if !plainName(u.Name) {
		w.fail("%q is no name of an upstream, which is of lower-case letters and digits", u.Name)
	}
	if p.upstream(u.Name) != nil || slices.Contains(reserved, u.Name) {
		w.fail("the name %s is taken", u.Name)
	}
	w.options(map[string]func(){
		"port":    func() { u.port = uint16(w.number("port", 1, 65535)) },
		"tls":     func() { u.tls = true },
		"https":   func() { u.https = true },
		"quic":    func() { u.quic = true },
		"expired": func() { u.cert.expired = true },
		"unknown": func() { u.cert.unknownCA = true },
		"for":     func() { u.cert.name = w.next("a name") },
	})
	if len(p.sc.Upstreams) == maxUpstreams {
		w.fail("there are more than %d upstreams", maxUpstreams)
	}
	if len(p.sc.Steps) > 0 {
		w.fail("an upstream stands before the first step")
	}
	p.sc.Upstreams = append(p.sc.Upstreams, u)
	p.up, p.rule, p.expect = u, nil, nil
}

func plainName(s string) bool {
	for i, c := range s {
		if letter := c >= 'a' && c <= 'z'; !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// conditions are what a query may have or not.
var conditions = []string{"edns", "do", "cd", "rd", "nsid"}

// on begins a rule.
func (p *parser) on(w *tokens) {
	if p.up == nil {
		w.fail("it stands below an UPSTREAM")
		return
	}
	r := &rule{line: p.line, action: action{ede: -1}}
	r.name = strings.ToLower(w.next("a name"))
	if !strings.HasPrefix(r.name, "*") {
		if _, ok := dns.IsDomainName(r.name); !ok {
			w.fail("%q is no name", r.name)
		}
	}
	if r.name != "*" {
		r.name = dns.Fqdn(r.name)
	}
	if !w.accept("*") {
		r.qtype = w.qtype()
	}
	w.options(map[string]func(){
		"over":    func() { r.over = w.transport() },
		"times":   func() { r.times = w.number("number", 1, maxTimes) },
		"with":    func() { r.with = append(r.with, w.choice("condition", conditions...)) },
		"without": func() { r.without = append(r.without, w.choice("condition", conditions...)) },
	})
	p.up.rules = append(p.up.rules, r)
	p.rule = r
}

// record is one that an upstream sends or a client expects.
func (p *parser) record(w *tokens, section int) {
	owner, ttl := w.next("an owner"), w.next("a TTL")
	rest := p.rest(w, "a type")
	switch {
	case p.rule != nil:
		line := strings.Join([]string{owner, ttl, rest}, " ")
		// Whatever the placeholders stand for is an address or a part of one.
		sample := placeholder.ReplaceAllString(expandNumbers(line, 1), "192.0.2.1")
		if _, err := makeRecord(sample, "example."); err != nil {
			w.fail("%v", err)
		}
		p.rule.sections[section] = append(p.rule.sections[section], line)
	case p.expect != nil:
		p.expect.pattern(w, section, owner, ttl, rest)
	default:
		w.fail("it stands below an ON or an EXPECT")
	}
}

// numberHere is where the number of a query stands in a record.
var numberHere = regexp.MustCompile(`\$n\b`)

// expandNumbers puts n in its place.
func expandNumbers(line string, n int) string {
	return numberHere.ReplaceAllLiteralString(line, fmt.Sprint(n))
}

// makeRecord makes a record as written: an owner or a name that is "@" is qname.
func makeRecord(line, qname string) (dns.RR, error) {
	list := strings.Fields(line)
	for i, word := range list {
		if word == "@" {
			list[i] = qname
		}
	}
	rr, err := dns.NewRR(strings.Join(list, " "))
	if err == nil && rr == nil {
		err = errors.New("no record")
	}
	if err != nil {
		return nil, fmt.Errorf("%q is no record: %w", line, err)
	}
	return rr, nil
}
