package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

const expectUsage = "RCODE [[-]aa|tc|rd|ra|ad|cd…] [any] [answers N] [bytes N] [edns|-edns] [do|-do] [nsid TEXT] [ede N] [of LABEL], or EXPECT nothing"

// expect is what every reply to the last QUERY, or to the one with the label, must be.
type expect struct {
	label      string
	nothing    bool
	rcode      int
	set, unset []string
	any        bool // the records don't matter
	counted    bool // only the number of answers does
	answers    countRange
	bytes      countRange
	edns       int // 1: there is an OPT record, -1: there is none, 0: no matter
	do         int // likewise of the DO bit
	nsid       string
	ede        int // -1: no matter
	records    [3][]pattern
}

func (p *parser) expected(w *tokens) {
	e := &expect{bytes: countRange{0, unbounded}, ede: -1}
	if e.nothing = w.accept("nothing"); !e.nothing {
		e.rcode = w.rcode()
	}
	table := map[string]func(){
		"any":     func() { e.any = true },
		"answers": func() { e.counted, e.answers = true, w.countRange("count") },
		"bytes":   func() { e.bytes = w.countRange("size") },
		"edns":    func() { e.edns = 1 },
		"-edns":   func() { e.edns = -1 },
		"do":      func() { e.do = 1 },
		"-do":     func() { e.do = -1 },
		"nsid":    func() { e.nsid = w.next("an NSID") },
		"ede":     func() { e.ede = w.number("code", 0, math.MaxUint16) },
		"of": func() {
			e.label = w.next("a label")
			p.uses = append(p.uses, use{line: p.line, name: e.label, query: true})
		},
	}
	for _, f := range headerFlags {
		table[f] = func() { e.set = append(e.set, f) }
		table["-"+f] = func() { e.unset = append(e.unset, f) }
	}
	w.options(table)
	if e.label == "" && !slices.ContainsFunc(p.sc.Steps, func(s scenarioStep) bool { _, ok := s.step.(*query); return ok }) {
		w.fail("it stands behind a QUERY")
	}
	p.add(e)
	p.expect = e
}

// pattern adds a record that must be there.
func (e *expect) pattern(w *tokens, section int, owner, ttl, rest string) {
	var pt pattern
	switch s, ok := parseCountRange(ttl); {
	case ttl == "*":
		pt.most = math.MaxUint32
	case ok:
		pt.least, pt.most = uint32(min(s.least, math.MaxUint32)), uint32(min(s.most, math.MaxUint32))
	default:
		w.fail("%q is no TTL, which is N, N..M or *", ttl)
	}
	rr, err := dns.NewRR(strings.Join([]string{owner, "0", rest}, " "))
	if err == nil && rr == nil {
		err = errors.New("no record")
	}
	if err != nil {
		w.fail("%v", err)
		return
	}
	pt.rest = rr.String()
	e.records[section] = append(e.records[section], pt)
}

func (e *expect) run(ctx context.Context, st *run) error {
	a := st.last
	if e.label != "" {
		a = st.queries[e.label]
	}
	if a == nil {
		return errors.New("nothing was asked yet")
	}
	err := e.compare(a)
	if err == nil || !a.query.again {
		return err
	}
	return st.waitFor(ctx, func() error { return e.compare(st.startQuery(ctx, a.query)) })
}

// compare waits for the replies and gives what is wrong with the first that is not as
// expected.
func (e *expect) compare(a *sentQuery) error {
	a.done.Wait()
	for i, r := range a.replies {
		if err := e.check(r); err != nil {
			return fmt.Errorf("reply %d of %d to %s %s: %w", i+1, len(a.replies), a.query.name, dns.Type(a.query.qtype), err)
		}
	}
	return nil
}

// check compares one reply.
func (e *expect) check(r reply) error {
	switch {
	case e.nothing && errors.Is(r.err, errSilence):
		return nil
	case r.err != nil:
		return r.err
	case e.nothing:
		return fmt.Errorf("there is one, want none:\n%s", r.msg)
	}
	for _, compare := range []func(reply) error{e.checkHeader, e.checkEDNS, e.checkRecords} {
		if err := compare(r); err != nil {
			return fmt.Errorf("%w; it is:\n%s", err, r.msg)
		}
	}
	return nil
}

func (e *expect) checkHeader(r reply) error {
	if r.msg.Rcode != e.rcode {
		return fmt.Errorf("the rcode is %s, want %s", dns.RcodeToString[r.msg.Rcode], dns.RcodeToString[e.rcode])
	}
	for _, f := range e.set {
		if !*flagBit(r.msg, f) {
			return fmt.Errorf("%s is not set", f)
		}
	}
	for _, f := range e.unset {
		if *flagBit(r.msg, f) {
			return fmt.Errorf("%s is set", f)
		}
	}
	if !e.bytes.has(r.bytes) {
		return fmt.Errorf("it has %d bytes, want %s", r.bytes, e.bytes)
	}
	return nil
}

func (e *expect) checkEDNS(r reply) error {
	opt := r.msg.IsEdns0()
	switch {
	case flagMismatch(e.edns, opt != nil):
		return errors.New("the OPT record is there or not against what is wanted")
	case flagMismatch(e.do, opt != nil && opt.Do()):
		return errors.New("the DO bit is the other way")
	case e.nsid != "" && !hasOption(opt, dns.EDNS0NSID, fmt.Sprintf("%x", e.nsid)):
		return fmt.Errorf("the NSID is not %x", e.nsid)
	case e.ede >= 0 && !hasOption(opt, dns.EDNS0EDE, strconv.Itoa(e.ede)):
		return fmt.Errorf("there is no extended error %d", e.ede)
	}
	return nil
}

// flagMismatch reports whether is contradicts want: 1 for yes, -1 for no, 0 for no matter.
func flagMismatch(want int, is bool) bool { return want == 1 && !is || want == -1 && is }

// hasOption reports whether opt, which may be nil, has an option of the code whose text
// begins so.
func hasOption(opt *dns.OPT, code uint16, text string) bool {
	return opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		return o.Option() == code && strings.HasPrefix(o.String(), text)
	})
}

func (e *expect) checkRecords(r reply) error {
	if e.counted {
		if n := len(r.msg.Answer); !e.answers.has(n) {
			return fmt.Errorf("there are %d answers, want %s", n, e.answers)
		}
		return nil
	}
	if e.any {
		return nil
	}
	for i, got := range [][]dns.RR{r.msg.Answer, r.msg.Ns, r.msg.Extra} {
		if err := compare(e.records[i], got); err != nil {
			return fmt.Errorf("%s: %w", sectionNames[i], err)
		}
	}
	return nil
}

// compare holds that got, but for OPT records, is what the patterns say, in any order.
func compare(want []pattern, got []dns.RR) error {
	want = slices.Clone(want)
	for _, rr := range got {
		if rr.Header().Rrtype == dns.TypeOPT {
			continue
		}
		bare := dns.Copy(rr)
		ttl := bare.Header().Ttl
		bare.Header().Ttl = 0
		i := slices.IndexFunc(want, func(p pattern) bool { return p.rest == bare.String() && p.least <= ttl && ttl <= p.most })
		if i < 0 {
			return fmt.Errorf("there is %s, which is not wanted (any more); still wanted: %v", recordText(rr), want)
		}
		want = slices.Delete(want, i, i+1)
	}
	if len(want) > 0 {
		return fmt.Errorf("missing: %v", want)
	}
	return nil
}

func recordText(rr dns.RR) string { return strings.Join(strings.Fields(rr.String()), " ") }
