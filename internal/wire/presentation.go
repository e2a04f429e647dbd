package wire

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

// ParsedRecord is a resource record that was read from its presentation form. It is immutable and
// safe for concurrent use.
type ParsedRecord struct{ rr dns.RR }

// defaultTTL is the TTL of a record that is written without one, in seconds, as in CoreDNS.
const defaultTTL = 3600

// ParseRecord reads the first record of text, in presentation form (RFC 1035, 5.1): owner, TTL, class,
// type and RDATA. The default TTL is 3,600 s, the default class IN. It returns nil without an error
// if text has no record, but only blanks or a comment. It opens no file: $INCLUDE is an error.
func ParseRecord(text string) (*ParsedRecord, error) {
	z := dns.NewZoneParser(strings.NewReader(text+"\n"), ".", "")
	z.SetDefaultTTL(defaultTTL)
	rr, _ := z.Next()
	if err := z.Err(); rr == nil || err != nil {
		return nil, err
	}
	return &ParsedRecord{rr: rr}, nil
}

// Alias returns the target of a CNAME record in presentation form. ok is false for other types.
func (p *ParsedRecord) Alias() (target string, ok bool) {
	alias, ok := p.rr.(*dns.CNAME)
	if !ok {
		return "", false
	}
	return alias.Target, true
}

// AddRecord adds p, of any type, owner and class, to s; otherwise it is like [Reply.Add]. It
// returns an error that wraps [ErrResponse] if p has no wire form.
func (r *Reply) AddRecord(s Section, p *ParsedRecord) error {
	buf := make([]byte, dns.Len(p.rr)+1) // dns.Len is at least the uncompressed length
	end, err := dns.PackRR(p.rr, buf, 0, nil, false)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrResponse, err)
	}
	w := rewriter{from: buf[:end], left: rewriteBudget(buf[:end]), to: r, e: unchanged{}, plain: true}
	rec, ok := readRecord(w.from, 0)
	if r.full = r.full || s < r.section; !ok || !w.record(s, rec) {
		return fmt.Errorf("%w: %s", ErrResponse, p.rr)
	}
	return nil
}

// Presentation is a message in presentation form.
type Presentation struct {
	// Answers are the records of the answer section, with single spaces between their fields.
	Answers []string
	// TTL is the lowest TTL of the answer and authority sections in seconds, nil if they have no
	// record.
	TTL *uint32
}

// Present returns msg in presentation form. It is for a person who reads it: it unpacks msg
// into objects. Errors wrap [ErrResponse].
func Present(msg []byte) (p Presentation, err error) {
	m, err := Unpack(msg)
	if err != nil {
		return p, err
	}
	for i, rr := range append(m.Answer[:len(m.Answer):len(m.Answer)], m.Ns...) {
		if ttl := rr.Header().Ttl; p.TTL == nil || ttl < *p.TTL {
			p.TTL = &ttl
		}
		if i < len(m.Answer) {
			p.Answers = append(p.Answers, strings.ReplaceAll(rr.String(), "\t", " "))
		}
	}
	return p, nil
}

// Objects returns a message and its first question as pointers to structs, for the templates of a
// Corefile: the names of their fields and methods are those that CoreDNS's templates use. question
// is nil without one. Errors wrap [ErrResponse].
func Objects(msg []byte) (message, question any, err error) {
	m, err := Unpack(msg)
	if err != nil {
		return nil, nil, err
	}
	if len(m.Question) == 0 {
		return m, nil, nil
	}
	return m, &m.Question[0], nil
}
