// Inside the package: it uses the fakes of the other tests.

package upstream

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// recorded asks p for name, and returns the attempts without their times, which it checks.
func recorded(t *testing.T, p *Pool, name string) []Attempt {
	t.Helper()
	var r Recorder
	before := time.Now()
	if _, err := p.ExchangeFrom(t.Context(), question(t, name), From{Record: r.Exchange(3)}); err != nil {
		t.Log(err)
	}
	after := time.Now()
	list, more := r.Append(nil)
	if more != 0 {
		t.Errorf("%d attempts are left out", more)
	}
	for i := range list {
		a := &list[i]
		if a.Exchange != 3 || a.Start.Before(before) || a.End.Before(a.Start) || a.End.After(after) {
			t.Errorf("attempt %+v, of exchange 3 from %v to %v", a, before, after)
		}
		a.Exchange, a.Start, a.End = 0, time.Time{}, time.Time{}
	}
	return list
}

func diffAttempts(want, got []Attempt) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b Attempt) bool {
		if (a.Err == nil) != (b.Err == nil) || a.Err != nil && !errors.Is(b.Err, a.Err) && !errors.Is(a.Err, b.Err) {
			return false
		}
		a.Err, b.Err = nil, nil
		return a == b
	}))
}

// TestRecorder: a recorder has each query to a server, what became of it, and which reply is the answer.
func TestRecorder(t *testing.T) {
	late, other := startFake(t, ignore), startFake(t, answerOK)
	cfg := longTimeout(late, other)
	cfg.Policy, cfg.MaxFails = policies["sequential"], 0
	p := newHedgingPool(t, cfg)
	check := func(what, name string, want ...Attempt) {
		t.Helper()
		if d := diffAttempts(want, recorded(t, p, name)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	check("a server that is late", "a.test.",
		Attempt{Server: late.addr, Protocol: "udp", Cancelled: true},
		Attempt{Server: other.addr, Protocol: "udp", Hedge: true, Replied: true, Used: true})

	one := startFake(t, answerOK)
	cfg = longTimeout(one)
	cfg.MaxFails = 0
	p = newPool(t, cfg)
	one.setScript(func(r request) {
		if r.over == "tcp" {
			answerOK(r)
			return
		}
		m := r.answer(1)
		m.Truncated = true
		r.reply(m)
	})
	check("a truncated reply", "b.test.",
		Attempt{Server: one.addr, Protocol: "udp", Replied: true},
		Attempt{Server: one.addr, Protocol: "tcp", Replied: true, Used: true, Retry: "truncated"})
	one.setScript(func(r request) {
		if r.IsEdns0() != nil {
			r.send(r.headerOnly(dns.RcodeFormatError))
			return
		}
		answerOK(r)
	})
	check("a server without EDNS", "c.test.",
		Attempt{Server: one.addr, Protocol: "udp", Replied: true, Rcode: wire.FormErr},
		Attempt{Server: one.addr, Protocol: "udp", Replied: true, Used: true, Retry: "without EDNS"})
	one.setScript(func(r request) { r.reply(r.rcode(dns.RcodeServerFailure)) })
	check("SERVFAIL", "d.test.", Attempt{Server: one.addr, Protocol: "udp", Replied: true, Used: true, Rcode: wire.ServFail})

	cfg.ReadTimeout, cfg.MaxConnectAttempts = 10*time.Millisecond, 1
	one.setScript(ignore)
	p = newPool(t, cfg)
	check("a timeout", "e.test.", Attempt{Server: one.addr, Protocol: "udp", Err: ErrTimeout})
}

// TestRecorderReuse: after a reset an exchange that goes on adds nothing, and there is a bound.
func TestRecorderReuse(t *testing.T) {
	var r Recorder
	old := r.Exchange(0)
	n := old.start(&Attempt{})
	r.Reset()
	old.use(n)
	old.finish()
	if old.start(&Attempt{}) != 0 {
		t.Error("an attempt of an earlier use is added")
	}
	if list, more := r.Append(nil); len(list) != 0 || more != 0 {
		t.Errorf("%+v, and %d more", list, more)
	}
	next := r.Exchange(1)
	for range maxRecorded + 2 {
		next.start(&Attempt{})
	}
	if list, more := r.Append(nil); len(list) != maxRecorded || more != 2 || list[0].Exchange != 1 || list[0].Used {
		t.Errorf("%d attempts, and %d more, want %d and 2; %+v", len(list), more, maxRecorded, list[0])
	}
	Recording{}.use(0)
	Recording{}.finish()
}

// TestRecorderAllocs: the attempts of an exchange cost no allocation.
func TestRecorderAllocs(t *testing.T) {
	var r Recorder
	x := &exchange{record: r.Exchange(0)}
	q := newQuery()
	q.attempt.server = &server{}
	q.replyLen = len(q.reply)
	if n := testing.AllocsPerRun(1000, func() {
		x.record = r.Exchange(0)
		for range maxOutstanding {
			x.recordStart(q)
			x.recordEnd(q, time.Time{})
		}
		x.record.use(q.attempt.recorded)
		x.record.finish()
		r.Reset()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
