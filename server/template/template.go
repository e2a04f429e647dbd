// Package template answers queries with records produced by Go text/template templates.
//
// Each template applies to some zones and types, and to the names that match one of its
// patterns. Queries that do not match go to the next template if `fallthrough` allows it,
// and are answered SERVFAIL otherwise. Output is limited to the size of a message. If a
// template fails or produces no record, the query is answered SERVFAIL.
package template

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	gotemplate "text/template"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Templates are the templates of one server block. They are immutable and safe for
// concurrent use.
type Templates struct {
	list []*config.Template
}

// New returns the templates of cfg and those chained to it.
func New(cfg *config.Template) *Templates { return &Templates{list: cfg.All()} }

// Outcome is the result of [Templates.Answer].
type Outcome uint8

const (
	// NotMine: no template matches; the reply is unchanged.
	NotMine Outcome = iota
	// Answered: the reply is complete; it may be an error.
	Answered
	// WouldWait: the target of a CNAME record has to be resolved, but there is no [Lookup];
	// the reply is empty.
	WouldWait
)

// Lookup resolves name, in wire format, and the type of the current query through the whole
// query path. The error says why there is no answer.
type Lookup func(name []byte) (*wire.Reply, error)

// ErrTooLong means that the output of a template exceeds the size of a record.
var ErrTooLong = errors.New("the output of a template exceeds 64 KiB")

// errNoRecord means that a template has produced no record.
var errNoRecord = errors.New("a template produces no record")

// Asker is the request that a template answers.
type Asker interface {
	// Env returns what expressions can use of the query. It is valid while the template is executed.
	Env() expression.Env
}

// Answer writes the reply to q, sent by client, into r if a template matches. asker is for its expressions; it
// may be nil if there are none. lookup
// resolves the targets of CNAME records; if it is nil, such a query returns [WouldWait].
// The error says why the reply is SERVFAIL or a CNAME record has no addresses with it. A
// query outside of the templates' zones and types does not allocate.
func (t *Templates) Answer(q *wire.Query, client netip.Addr, r *wire.Reply, asker Asker, lookup Lookup) (Outcome, error) {
	var n *nameText
	defer func() {
		if n != nil {
			nameTexts.Put(n)
		}
	}()
	for _, c := range t.list {
		zone, ok := matchZone(q, c)
		if !ok {
			continue
		}
		if n == nil {
			n = nameTexts.Get().(*nameText)
			n.text = wire.AppendText(n.text[:0], q.Name())
		}
		re := n.firstMatch(c)
		switch {
		case re != nil:
			m := builder{template: c, r: r, lookup: lookup, data: newData(q, client, n, zone, re)}
			m.data.setType(q, c)
			switch holds, err := m.data.run(c, asker); {
			case err != nil:
				return m.fail(err)
			case holds:
				return m.buildReply(q)
			case !fallsThrough(q, c.Fallthrough):
				return m.fail(nil)
			}
		case !fallsThrough(q, c.Fallthrough):
			r.Fail(wire.ServFail)
			return Answered, nil
		}
	}
	return NotMine, nil
}

// matchZone returns the longest zone of c that contains q's name; false if there is none or
// c is for another type.
func matchZone(q *wire.Query, c *config.Template) (zone wire.Name, ok bool) {
	if c.Type != wire.TypeANY && q.Type != wire.TypeANY && q.Type != c.Type {
		return "", false
	}
	for _, z := range c.Zones {
		if len(z) > len(zone) && wire.Under(q.Name(), z) {
			zone = z
		}
	}
	return zone, zone != ""
}

// fallsThrough reports whether f lets q go to the next step.
func fallsThrough(q *wire.Query, f *config.Fallthrough) bool {
	if f == nil {
		return false
	}
	for _, z := range f.Zones {
		if wire.Under(q.Name(), z) {
			return true
		}
	}
	return len(f.Zones) == 0
}

// nameText is a qname in presentation format, in a reusable buffer.
type nameText struct{ text []byte }

var nameTexts = sync.Pool{New: func() any { return new(nameText) }}

// matchAll is the pattern of a template without one.
var matchAll = regexp.MustCompile(".*")

// firstMatch returns the first pattern of c that matches; nil if there is none.
func (n *nameText) firstMatch(c *config.Template) *regexp.Regexp {
	if len(c.Match) == 0 {
		return matchAll
	}
	for _, re := range c.Match {
		if re.Match(n.text) {
			return re
		}
	}
	return nil
}

// Data is what a template can use of the query, as in CoreDNS.
type Data struct {
	Zone  string
	Name  string
	Regex string
	Match []string
	Group map[string]string
	Class string
	Type  string
	// Remote is the client's IP address.
	Remote string
	// Var are the values of the template's variables.
	Var map[string]any

	packet            []byte
	message, question any // nil until needed
	env               expression.Env
}

func newData(q *wire.Query, client netip.Addr, n *nameText, zone wire.Name, re *regexp.Regexp) *Data {
	d := &Data{
		Zone: zone.String(), Name: string(n.text), Regex: re.String(), Class: "IN",
		Remote: client.Unmap().String(), packet: q.Packet,
	}
	d.Match = re.FindStringSubmatch(d.Name)
	d.Group = make(map[string]string, len(d.Match))
	for i, m := range d.Match {
		d.Group[strconv.Itoa(i)] = m
	}
	for i, name := range re.SubexpNames() {
		if name != "" {
			d.Group[name] = d.Match[i]
		}
	}
	return d
}

// setType sets the type: the query's, or the template's for ANY.
func (d *Data) setType(q *wire.Query, c *config.Template) {
	d.Type = wire.RegisteredTypeName(q.Type)
	if q.Type == wire.TypeANY {
		d.Type = wire.RegisteredTypeName(c.Type)
	}
}

// run computes the variables of c, and reports whether its expressions are true.
func (d *Data) run(c *config.Template, asker Asker) (holds bool, err error) {
	if asker != nil {
		d.env = asker.Env()
	}
	if c.Script == nil {
		return true, nil
	}
	if d.Var, holds, err = c.Script.Run(d.env, d.Group); err != nil {
		err = fmt.Errorf("template: %w", err)
	}
	return holds, err
}

// Message returns the query, with the fields of CoreDNS's messages.
func (d *Data) Message() (_ any, err error) {
	if d.message == nil {
		d.message, d.question, err = wire.Objects(d.packet)
	}
	return d.message, err
}

// Question returns the question of the query, with the fields of CoreDNS's questions.
func (d *Data) Question() (any, error) {
	_, err := d.Message()
	return d.question, err
}

// Meta returns a value of CoreDNS's metadata; "" is none.
func (d *Data) Meta(name string) string {
	if d.env == nil {
		return ""
	}
	return d.env.Metadata(name)
}

// builder builds one reply.
type builder struct {
	template  *config.Template
	r         *wire.Reply
	lookup    Lookup
	data      *Data
	text      limitedBuffer
	lookupErr error // first error of a lookup
}

// buildReply builds the whole reply.
func (m *builder) buildReply(q *wire.Query) (Outcome, error) {
	c := m.template
	m.r.Fail(c.Rcode)
	if c.Rcode == wire.ServFail || c.Rcode > maxRcodeWithoutEDNS && !q.EDNS {
		m.r.Fail(wire.ServFail)
		return Answered, nil
	}
	m.r.SetAuthoritative()
	if c.EDE != nil {
		m.r.SetEDEText(wire.EDE(c.EDE.Code), c.EDE.Text)
	}
	for _, t := range c.Answer {
		waits, err := m.addAnswer(q, t)
		if waits {
			m.r.Reset()
			return WouldWait, nil
		}
		if err != nil {
			return m.fail(err)
		}
	}
	if err := m.addSection(wire.Authority, c.Authority); err != nil {
		return m.fail(err)
	}
	if err := m.addSection(wire.Additional, c.Additional); err != nil {
		return m.fail(err)
	}
	return Answered, m.lookupErr
}

// maxRcodeWithoutEDNS is the largest rcode that a reply without EDNS can have (RFC 6891,
// 6.1.3).
const maxRcodeWithoutEDNS = 15

func (m *builder) fail(err error) (Outcome, error) {
	m.r.Fail(wire.ServFail)
	return Answered, err
}

// addAnswer adds an answer record and, for a CNAME record, resolves its target.
func (m *builder) addAnswer(q *wire.Query, t *gotemplate.Template) (waits bool, err error) {
	rr, err := m.buildRecord(t)
	if err != nil {
		return false, err
	}
	if err := m.r.AddRecord(wire.Answer, rr); err != nil {
		return false, err
	}
	target, ok := rr.Alias()
	if !ok || q.Type != wire.TypeA && q.Type != wire.TypeAAAA {
		return false, nil
	}
	if m.lookup == nil {
		return true, nil
	}
	m.addLookup(target)
	return false, nil
}

// addLookup adds the records that target resolves to, or sets lookupErr.
func (m *builder) addLookup(target string) {
	name, ok := wire.AppendName(nil, []byte(strings.ToLower(target)))
	if !ok {
		return
	}
	other, err := m.lookup(name)
	if other != nil && !m.r.AddAnswers(other) {
		err = wire.ErrResponse
	}
	if m.lookupErr == nil { // one error is enough
		m.lookupErr = err
	}
}

// addSection adds the records of section s.
func (m *builder) addSection(s wire.Section, list []*gotemplate.Template) error {
	for _, t := range list {
		rr, err := m.buildRecord(t)
		if err != nil {
			return err
		}
		if err := m.r.AddRecord(s, rr); err != nil {
			return err
		}
	}
	return nil
}

// buildRecord executes t and parses its output.
func (m *builder) buildRecord(t *gotemplate.Template) (*wire.ParsedRecord, error) {
	m.text.Reset()
	if err := t.Execute(&m.text, m.data); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	rr, err := wire.ParseRecord(m.text.String())
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", t.Name(), err)
	}
	if rr == nil {
		return nil, errNoRecord
	}
	return rr, nil
}

// limitedBuffer is a buffer limited to the size of a message.
type limitedBuffer struct{ bytes.Buffer }

// Write returns [ErrTooLong] if the limit is exceeded.
func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.Len()+len(b) > wire.MaxMessage {
		return 0, ErrTooLong
	}
	return l.Buffer.Write(b)
}
