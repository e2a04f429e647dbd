package scenario

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/miekg/dns"
)

// matches reports whether the rule is for q, which came over the transport.
func (r *rule) matches(q *dns.Msg, over string) bool {
	question := q.Question[0]
	name := strings.ToLower(question.Name)
	switch {
	case r.over != "" && r.over != over, r.qtype != 0 && r.qtype != question.Qtype:
		return false
	case strings.HasPrefix(r.name, "*."):
		if zone := r.name[2:]; name == zone || !dns.IsSubDomain(zone, name) {
			return false
		}
	case r.name != "*" && r.name != name:
		return false
	}
	has := func(c string) bool { return condition(q, c) }
	return !slices.ContainsFunc(r.without, has) && !slices.ContainsFunc(r.with, func(c string) bool { return !has(c) })
}

// condition reports whether q has what c says.
func condition(q *dns.Msg, c string) bool {
	opt := q.IsEdns0()
	switch c {
	case "edns":
		return opt != nil
	case "do":
		return opt != nil && opt.Do()
	case "cd":
		return q.CheckingDisabled
	case "rd":
		return q.RecursionDesired
	case "nsid":
		return opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0NSID })
	}
	return false
}

// message makes the answer to q, the nth that its server gets; fill puts in what the
// placeholders in records stand for.
func (a *action) message(q *dns.Msg, n int, fill func(string) (string, error)) ([]byte, error) {
	if a.raw != nil {
		return append([]byte{byte(q.Id >> 8), byte(q.Id)}, a.raw...), nil
	}
	m := new(dns.Msg).SetReply(q)
	m.Rcode, m.RecursionAvailable, m.CheckingDisabled, m.Compress = a.rcode, true, q.CheckingDisabled, true
	for _, f := range a.set {
		*flagBit(m, f) = true
	}
	for _, f := range a.unset {
		*flagBit(m, f) = false
	}
	if a.bare {
		m.Question = nil
		return m.Pack()
	}
	if err := a.records(m, n, fill); err != nil {
		return nil, err
	}
	a.edns(m, q)
	b, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("packing an answer: %w", err)
	}
	return append(b[:max(0, len(b)-a.cut)], make([]byte, a.extra)...), nil
}

// records puts the records into m.
func (a *action) records(m *dns.Msg, n int, fill func(string) (string, error)) error {
	qname := m.Question[0].Name
	for i, section := range []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for _, line := range a.sections[i] {
			line, err := fill(expandNumbers(line, n))
			if err != nil {
				return err
			}
			rr, err := makeRecord(line, qname)
			if err != nil {
				return err
			}
			*section = append(*section, rr)
		}
	}
	owner := qname
	for i := range a.chain {
		target := fmt.Sprintf("c%d.chain.test.", i+1)
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: target})
		owner = target
	}
	addresses := a.many
	if a.chain > 0 {
		addresses++
	}
	for i := range addresses {
		m.Answer = append(m.Answer, &dns.A{Hdr: header(owner, dns.TypeA), A: []byte{10, byte(i >> 16), byte(i >> 8), byte(i)}})
	}
	return nil
}

// generatedTTL is that of records that MANY and CHAIN make.
const generatedTTL = 300

func header(owner string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: generatedTTL}
}

// edns gives m an OPT record if q has one.
func (a *action) edns(m, q *dns.Msg) {
	opt := q.IsEdns0()
	if opt == nil || a.noEDNS {
		return
	}
	m.SetEdns0(dns.DefaultMsgSize, opt.Do())
	if a.ede >= 0 {
		own := m.IsEdns0()
		own.Option = append(own.Option, &dns.EDNS0_EDE{InfoCode: uint16(a.ede)})
	}
}

// poison is the address in every stray: who gets it has been deceived.
const poison = "192.0.2.66"

// strayReply makes a message of the kind that is no answer to q.
func strayReply(kind string, q *dns.Msg) ([]byte, error) {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	question := &m.Question[0]
	switch kind {
	case "id":
		m.Id++
	case "question":
		question.Name = "other.test."
	case "type":
		question.Qtype = dns.TypeTXT
		if q.Question[0].Qtype == dns.TypeTXT {
			question.Qtype = dns.TypeA
		}
	case "case":
		question.Name = strings.Map(otherCase, question.Name)
	case "garbage":
		return []byte{byte(q.Id >> 8), byte(q.Id), 0x81, 0x80, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xC0, 0x0C}, nil
	case "short":
		return []byte{byte(q.Id >> 8), byte(q.Id), 0x81}, nil
	case "query":
		m.Response = false
	}
	rr, err := makeRecord("@ 300 A "+poison, question.Name)
	if err != nil {
		return nil, err
	}
	m.Answer = append(m.Answer, rr)
	return m.Pack()
}

func otherCase(r rune) rune {
	if unicode.IsUpper(r) {
		return unicode.ToLower(r)
	}
	return unicode.ToUpper(r)
}
