package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
)

// question is a well-formed query and what must come back.
type question struct {
	name  string
	qtype uint16
	rcode int
	// answers are the data of the answer section, sorted.
	answers []string
	// cut says that the answer is longer than the query allows over UDP.
	cut bool
}

// knownQuestions are questions to each step of the path.
var knownQuestions = []question{
	{name: handWrittenNames, qtype: dns.TypeA, answers: []string{"A 192.0.2.9"}},
	{name: handWrittenNames, qtype: dns.TypeAAAA, answers: []string{"AAAA 2001:db8::9"}},
	{name: clusterIP, qtype: dns.TypeA, answers: []string{"A 10.96.7.1"}},
	{name: clusterIP, qtype: dns.TypeAAAA, answers: []string{"AAAA fd00::7:1"}},
	{name: clusterIP, qtype: dns.TypeHTTPS},
	{name: headless, qtype: dns.TypeA, answers: []string{"A 10.244.1.10", "A 10.244.2.10"}},
	{name: port, qtype: dns.TypeSRV, answers: []string{"SRV 0 50 5432 db-0." + headless, "SRV 0 50 5432 db-1." + headless}},
	{name: "nobody.shop.svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
	{name: aliasInside, qtype: dns.TypeA, answers: []string{"A 10.96.7.1", "CNAME " + clusterIP}},
	{name: aliasOutside, qtype: dns.TypeA, answers: []string{"A " + addressOf("out."+goodZone).String(), "CNAME out." + goodZone}},
	{name: reverse, qtype: dns.TypePTR, answers: []string{"PTR " + clusterIP}},
	{name: "cached." + goodZone, qtype: dns.TypeA, answers: []string{"A " + addressOf("cached."+goodZone).String(), "CNAME target." + goodZone}},
	{name: "nobody." + goodZone, qtype: dns.TypeA, rcode: dns.RcodeNameError},
	{name: "big." + goodZone, qtype: dns.TypeTXT, answers: bigAnswers(), cut: true},
}

func bigAnswers() (out []string) {
	for i := range bigRecords {
		out = append(out, fmt.Sprintf(`TXT "%03d %s"`, i, strings.Repeat("x", 200)))
	}
	return out
}

// newQuestion is a question for a name that nobody has asked for: n is another each time.
func newQuestion(n uint64) question {
	name := fmt.Sprintf("u%d.%s", n, goodZone)
	return question{name: name, qtype: dns.TypeA, answers: []string{"A " + addressOf(name).String()}}
}

// randomQuestion is a question of known, or a fresh one.
func randomQuestion(r *rand.Rand, n uint64) question {
	if i := r.IntN(len(knownQuestions) + 2); i < len(knownQuestions) {
		return knownQuestions[i]
	}
	return newQuestion(n)
}

// query is the question as a client sends it, in any case, with EDNS or without.
func (q question) query(r *rand.Rand) *dns.Msg {
	name := []byte(q.name)
	for i, c := range name {
		if r.IntN(2) == 0 && 'a' <= c && c <= 'z' {
			name[i] = c - 'a' + 'A'
		}
	}
	m := new(dns.Msg)
	m.SetQuestion(string(name), q.qtype)
	m.Id = uint16(r.Uint32())
	if r.IntN(2) == 0 {
		m.SetEdns0(1232, r.IntN(2) == 0)
	}
	return m
}

// check says what is wrong with an answer to query, nil if nothing is. Over TCP
// nothing is cut.
func (q question) check(query, got *dns.Msg, overTCP bool) error {
	switch {
	case !got.Response || got.Id != query.Id || got.Opcode != dns.OpcodeQuery:
		return fmt.Errorf("%s: not an answer to the query: %+v", q.name, got.MsgHdr)
	case !slices.Equal(got.Question, query.Question):
		return fmt.Errorf("%s: the question came back as %v", q.name, got.Question)
	case got.Rcode != q.rcode:
		return fmt.Errorf("%s: rcode %s, want %s", q.name, dns.RcodeToString[got.Rcode], dns.RcodeToString[q.rcode])
	case got.Truncated != (q.cut && !overTCP):
		return fmt.Errorf("%s: TC is %v", q.name, got.Truncated)
	case (got.IsEdns0() != nil) != (query.IsEdns0() != nil):
		return fmt.Errorf("%s: OPT in the answer: %v", q.name, got.IsEdns0() != nil)
	}
	return q.checkAnswers(got)
}

func (q question) checkAnswers(got *dns.Msg) error {
	var answers []string
	for _, rr := range got.Answer {
		text := strings.TrimPrefix(rr.String(), rr.Header().String())
		answers = append(answers, dns.TypeToString[rr.Header().Rrtype]+" "+strings.ToLower(text))
	}
	slices.Sort(answers)
	if got.Truncated {
		if len(answers) >= len(q.answers) {
			return fmt.Errorf("%s: TC, and %d answers", q.name, len(answers))
		}
		return nil
	}
	if !slices.Equal(answers, q.answers) {
		return fmt.Errorf("%s: answered %q, want %q", q.name, answers, q.answers)
	}
	return nil
}

// expectedReplies is what the answers to packets with one ID may be.
type expectedReplies struct {
	open  uint16 // packets that wait for one
	limit uint16 // the most bytes
}

// maxReplySize is the most bytes that the answer to packet may have: what its OPT record
// claims, as this package reads it, but 512 at least (RFC 6891, 6.2.3).
func maxReplySize(packet []byte) uint16 {
	limit := uint16(dns.MinMsgSize)
	for _, r := range broken.ParseLayout(packet).Records {
		if at := r.Data - 10; packet[at] == 0 && packet[at+1] == broken.TypeOPT {
			limit = max(limit, uint16(packet[at+2])<<8|uint16(packet[at+3]))
		}
	}
	return limit
}

// noReplyExpected says whether packet must get no answer: it is a response, or shorter than a
// header. An answer to it would make the agent a mirror.
func noReplyExpected(packet []byte) bool {
	return len(packet) < broken.HeaderLen || packet[2]&0x80 != 0
}
