// Package template answers queries with records that are made of the query by templates
// of Go's text/template.
//
// Each template is for some zones and types, and for the names that one of its patterns
// takes; what it does not take goes on to the next, or ends there. What is made is bounded
// by what a message holds. A template that fails, or makes no record, is a SERVFAIL.
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

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Templates are those of one server block. They are immutable and safe for concurrent
// use.
type Templates struct {
	list []*config.Template
}

// New makes the templates of cfg and those behind it.
func New(cfg *config.Template) *Templates { return &Templates{list: cfg.All()} }

// Outcome is what came of a query.
type Outcome uint8

const (
	// NotMine: no template is for the query; the reply is as it was.
	NotMine Outcome = iota
	// Answered: the reply is whole; it may be an error.
	Answered
	// WouldWait: an alias that was made leads to what has to be looked up, without a
	// [Lookup]; the reply is empty.
	WouldWait
)

// Lookup gives the reply to a query for name, in wire form, and the type of the query at
// hand, through the whole path. The error is why it has no answers.
type Lookup func(name []byte) (*wire.Reply, error)

// ErrTooLong is why a template failed whose text is longer than a record can be.
var ErrTooLong = errors.New("a template makes more than 64 KiB of text")

// errNoRecord is why a template failed that makes nothing.
var errNoRecord = errors.New("a template makes no record")

// Answer makes the reply to q of client, if one of the templates is for it. lookup resolves
// what aliases among the answers lead to; without it such a query comes to [WouldWait]. An
// error says why the reply is a SERVFAIL, or why such an alias stands alone. Nothing is
// allocated for a query that no template's zones and type take.
func (t *Templates) Answer(q *wire.Query, client netip.Addr, r *wire.Reply, lookup Lookup) (Outcome, error) {
	var n *nameText
	defer func() { n.release() }()
	for _, c := range t.list {
		zone, ok := matchZone(q, c)
		if !ok {
			continue
		}
		if n == nil {
			n = newNameText(q)
		}
		re := n.firstMatch(c)
		switch {
		case re != nil:
			m := builder{template: c, r: r, lookup: lookup, data: newData(q, client, n, zone, re)}
			m.data.setType(q, c)
			return m.buildReply(q)
		case !fallsThrough(q, c.Fallthrough):
			r.Fail(wire.ServFail)
			return Answered, nil
		}
	}
	return NotMine, nil
}

// matchZone gives the longest of c's zones that q's name is in, if c is for q's type.
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

// fallsThrough reports whether f lets q go on.
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

// nameText is a qname in presentation form, in a buffer that is used again.
type nameText struct{ text []byte }

var nameTexts = sync.Pool{New: func() any { return new(nameText) }}

func newNameText(q *wire.Query) *nameText {
	n := nameTexts.Get().(*nameText)
	n.text = wire.AppendText(n.text[:0], q.Name())
	return n
}

// release gives n, which may be nil, back.
func (n *nameText) release() {
	if n != nil {
		nameTexts.Put(n)
	}
}

// matchAll is the pattern of a template without one.
var matchAll = regexp.MustCompile(".*")

// firstMatch is the first of c's patterns that takes the name, nil if none does.
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

// Data is what a template can name of the query, as CoreDNS has it.
type Data struct {
	Zone  string
	Name  string
	Regex string
	Match []string
	Group map[string]string
	Class string
	Type  string
	// Remote is the client's address.
	Remote string

	packet []byte
	msg    *dns.Msg
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

// setType sets the type: the query's, or what the template is for where the query asks for
// all.
func (d *Data) setType(q *wire.Query, c *config.Template) {
	d.Type = dns.TypeToString[q.Type]
	if q.Type == wire.TypeANY {
		d.Type = dns.TypeToString[c.Type]
	}
}

// Message is the whole query.
func (d *Data) Message() (*dns.Msg, error) {
	if d.msg == nil {
		m, err := wire.Unpack(d.packet)
		if err != nil {
			return nil, err
		}
		d.msg = m
	}
	return d.msg, nil
}

// Question is the query's question.
func (d *Data) Question() (*dns.Question, error) {
	m, err := d.Message()
	if err != nil {
		return nil, err
	}
	return &m.Question[0], nil
}

// Meta is a value of CoreDNS's metadata; there is none.
func (d *Data) Meta(string) string { return "" }

// builder makes one reply.
type builder struct {
	template  *config.Template
	r         *wire.Reply
	lookup    Lookup
	data      *Data
	text      limitedBuffer
	lookupErr error // of a lookup
}

// buildReply makes the whole reply.
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

// maxRcodeWithoutEDNS is the last rcode that a client without EDNS can be told (RFC 6891, 6.1.3).
const maxRcodeWithoutEDNS = 15

func (m *builder) fail(err error) (Outcome, error) {
	m.r.Fail(wire.ServFail)
	return Answered, err
}

// addAnswer makes one of the answers, and resolves what it leads to.
func (m *builder) addAnswer(q *wire.Query, t *gotemplate.Template) (waits bool, err error) {
	rr, err := m.buildRecord(t)
	if err != nil {
		return false, err
	}
	if err := m.r.AddRecord(wire.Answer, rr); err != nil {
		return false, err
	}
	alias, ok := rr.(*dns.CNAME)
	if !ok || q.Type != wire.TypeA && q.Type != wire.TypeAAAA {
		return false, nil
	}
	if m.lookup == nil {
		return true, nil
	}
	m.addLookup(alias.Target)
	return false, nil
}

// addLookup adds what target resolves to; why it does not is in failed then.
func (m *builder) addLookup(target string) {
	name, ok := wire.AppendName(nil, []byte(strings.ToLower(target)))
	if !ok {
		return
	}
	other, err := m.lookup(name)
	if other != nil && !m.r.AddAnswers(other) {
		err = wire.ErrResponse
	}
	if m.lookupErr == nil { // one tells it all
		m.lookupErr = err
	}
}

// addSection makes the records of s.
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

// buildRecord makes one record.
func (m *builder) buildRecord(t *gotemplate.Template) (dns.RR, error) {
	m.text.Reset()
	if err := t.Execute(&m.text, m.data); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	rr, err := dns.NewRR(m.text.String())
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", t.Name(), err)
	}
	if rr == nil {
		return nil, errNoRecord
	}
	return rr, nil
}

// limitedBuffer takes as much text as the longest record may need.
type limitedBuffer struct{ bytes.Buffer }

// Write fails with [ErrTooLong] beyond the limit.
func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.Len()+len(b) > wire.MaxMessage {
		return 0, ErrTooLong
	}
	return l.Buffer.Write(b)
}
