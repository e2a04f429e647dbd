package load

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

func start(t *testing.T) *Loop {
	t.Helper()
	l, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// run does a job of the streams and checks the sums.
func run(t *testing.T, l *Loop, j LoopJob) []Result {
	t.Helper()
	results, err := l.Run(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		var rcodes uint64
		for _, n := range r.Rcodes {
			rcodes += n
		}
		if r.Sent == 0 || r.Answered+r.Lost != r.Sent || rcodes != r.Answered {
			t.Errorf("stream %d: %d queries, %d answers with the rcodes %v, %d lost", i, r.Sent, r.Answered, r.Rcodes, r.Lost)
		}
		if timed := j.Streams[i].Rate > 0; timed && uint64(len(r.Latencies))+r.Blurred != r.Answered || !timed && len(r.Latencies) > 0 {
			t.Errorf("stream %d: %d times and %d blurred ones of %d answers", i, len(r.Latencies), r.Blurred, r.Answered)
		}
	}
	return results
}

// TestRate lets the loop ask itself. What a busy machine keeps it from asking is
// counted, so that the sum holds there too.
func TestRate(t *testing.T) {
	l := start(t)
	const rate, length = 2000, 100 * time.Millisecond
	r := run(t, l, LoopJob{Server: l.Addr(), Length: length, Streams: []Stream{
		{Questions: [][]byte{ask(t, "a.example.", dns.TypeA), ask(t, "b."+Missing, dns.TypeA)}, Rate: rate, Sockets: 3},
	}})[0]
	if n := r.Sent + r.Skipped; n != 200 {
		t.Errorf("%d queries sent and %d skipped in %v at %d a second", r.Sent, r.Skipped, length, rate)
	}
	if d := int64(r.Rcodes[dns.RcodeSuccess]) - int64(r.Rcodes[dns.RcodeNameError]); d < -1 || d > 1 {
		t.Errorf("two questions in turn get the rcodes %v", r.Rcodes)
	}
	if l.Asked() != r.Answered || l.Late() != 0 {
		t.Errorf("the upstream counts %d and %d late ones, want %d", l.Asked(), l.Late(), r.Answered)
	}
}

// TestDelay holds that late answers are late and others beside them are not kept
// by them: all of the others would have to be late for the test to fail.
func TestDelay(t *testing.T) {
	l := start(t)
	r := run(t, l, LoopJob{Server: l.Addr(), Length: 100 * time.Millisecond, Streams: []Stream{
		{Questions: [][]byte{ask(t, "00000000."+Late, dns.TypeA)}, Fresh: true, Rate: 1000, Sockets: 2},
		{Questions: [][]byte{ask(t, "now.example.", dns.TypeA)}, Rate: 1000, Sockets: 2},
	}})
	for _, d := range r[0].Latencies {
		if d < Delay {
			t.Errorf("a late answer came after %v", d)
		}
	}
	soon := 0
	for _, d := range r[1].Latencies {
		if d < Delay {
			soon++
		}
	}
	if soon == 0 && len(r[1].Latencies) > 10 {
		t.Errorf("all of %v waited with the late ones", r[1].Latencies)
	}
	if l.Late() != r[0].Answered || l.Asked() != r[1].Answered {
		t.Errorf("the upstream counts %d and %d late ones", l.Asked(), l.Late())
	}
}

// TestWindow asks more than there are IDs from one socket, and all of it is a new
// name.
func TestWindow(t *testing.T) {
	l := start(t)
	const count = slots + 5000
	r := run(t, l, LoopJob{Server: l.Addr(), Streams: []Stream{
		{Questions: [][]byte{ask(t, "00000000.example.", dns.TypeA)}, Fresh: true, Window: 16, Count: count, Sockets: 1, Patience: time.Minute},
	}})[0]
	if r.Sent != count || r.Lost != 0 || l.Asked() != count {
		t.Errorf("%d of %d asked, %d lost, %d seen", r.Sent, count, r.Lost, l.Asked())
	}
	if r.RequestBytes != count*34 || r.ResponseBytes != count*(34+16) {
		t.Errorf("%d and %d bytes", r.RequestBytes, r.ResponseBytes)
	}
}

func TestFresh(t *testing.T) {
	up := fakedns.Start(t, fakedns.Answers(oneAddress))
	run(t, start(t), LoopJob{Server: up.Addr(), Streams: []Stream{
		{Questions: [][]byte{ask(t, "00000000.example.", dns.TypeA)}, Fresh: true, First: 0xfe, Window: 1, Count: 3, Sockets: 2},
	}})
	var got []string
	for _, q := range up.Queries() {
		got = append(got, q.Name)
	}
	if d := cmp.Diff([]string{"000000fe.example.", "000000ff.example.", "00000100.example."}, got); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
}

// oneAddress is the reply of a server that has one address for every name.
func oneAddress(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 7, "192.0.2.1") }

// TestLost asks a server that answers every third query, and another third with what is no answer.
func TestLost(t *testing.T) {
	up := fakedns.Start(t, func(q *fakedns.Query) {
		switch q.Number % 3 {
		case 1:
			q.Send(pack(t, q.Msg))
		case 2:
			q.Reply(oneAddress(q.Msg))
		}
	})
	r := run(t, start(t), LoopJob{Server: up.Addr(), Streams: []Stream{
		{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Window: 9, Count: 9, Sockets: 2},
	}})[0]
	if r.Answered != 3 || r.Lost != 6 || r.Elapsed < defaultPatience {
		t.Errorf("%d of 9 answered and %d lost in %v", r.Answered, r.Lost, r.Elapsed)
	}
}

// TestRefused: where nobody listens, a stream and a schedule end with an error, or count each query as lost if that is wanted; a job
// counts them anyhow.
func TestRefused(t *testing.T) {
	t.Parallel() // it waits for answers
	up := fakedns.Start(t, fakedns.Answers(oneAddress))
	at := up.Addr()
	up.Close()
	l := start(t)
	for _, lost := range []bool{false, true} {
		results, err := l.Run(t.Context(), LoopJob{Server: at, Streams: []Stream{{
			Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Window: 1, Count: 3, Sockets: 1, Patience: time.Millisecond, RefusedIsLost: lost,
		}}})
		list, scheduled := Schedule{Server: at, Count: 3, Rate: 1000, RefusedIsLost: lost, Name: func(int) string { return "a.example." }}.Run(t.Context())
		if !lost {
			if !errors.Is(err, unix.ECONNREFUSED) || !errors.Is(scheduled, unix.ECONNREFUSED) {
				t.Errorf("%v and %v, want %v", err, scheduled, unix.ECONNREFUSED)
			}
			continue
		}
		if err := errors.Join(err, scheduled); err != nil {
			t.Fatal(err)
		}
		if r := results[0]; r.Sent != 3 || r.Lost != 3 || r.Answered != 0 {
			t.Errorf("%d sent, %d lost, %d answered, want 3, 3 and 0", r.Sent, r.Lost, r.Answered)
		}
		for i, q := range list {
			if !q.Lost || !q.Failed || len(list) != 3 {
				t.Errorf("query %d of %d: %+v", i, len(list), q)
			}
		}
	}
	r, err := Job{Servers: []netip.AddrPort{at}, Names: 1, Zone: "load.test.", Duration: 200 * time.Millisecond, Rate: 100, Sockets: 2, QueriesPerSocket: 10}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.UDP.Lost != r.UDP.Asked || r.Refused == 0 || len(r.Runs) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestCancel ends a job that would take an hour, and then does another one.
func TestCancel(t *testing.T) {
	l := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	at := fakedns.Start(t, func(*fakedns.Query) { cancel() }).Addr()
	s := Stream{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 100, Sockets: 1}
	if _, err := l.Run(ctx, LoopJob{Server: at, Length: time.Hour, Streams: []Stream{s}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled job: %v", err)
	}
	s = Stream{Questions: s.Questions, Window: 1, Count: 5, Sockets: 1}
	run(t, l, LoopJob{Server: l.Addr(), Streams: []Stream{s}})
}

func TestShortLabel(t *testing.T) {
	s := Stream{Questions: [][]byte{ask(t, "short.example.", dns.TypeA)}, Fresh: true, Window: 1, Count: 1, Sockets: 1}
	if _, err := start(t).Run(t.Context(), LoopJob{Server: netip.MustParseAddrPort("127.0.0.1:9"), Streams: []Stream{s}}); err == nil {
		t.Error("a label without room for the number is taken")
	}
}

// TestBlurred holds that an answer from a time without the core has no latency but
// counts.
func TestBlurred(t *testing.T) {
	l := start(t)
	c, err := newClient(Stream{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 1, Sockets: 1}, l.Addr(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	c.clock = l.clock
	for i, blurred := range []bool{true, false} {
		if !c.send() {
			t.Fatal("not sent")
		}
		buf := make([]byte, size)
		for c.Answered == uint64(i) && c.errno == 0 {
			c.socks[0].receive(buf, l.now(), blurred)
		}
	}
	if c.Blurred != 1 || len(c.Latencies) != 1 || c.Answered != 2 || c.under != 0 {
		t.Errorf("%d blurred, %d times, %d answers, %d under way", c.Blurred, len(c.Latencies), c.Answered, c.under)
	}
}

// TestSkip holds that what could not be sent in time is not made up for.
func TestSkip(t *testing.T) {
	l := start(t)
	c, err := newClient(Stream{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 1000, Sockets: 1}, l.Addr(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	c.clock = l.clock
	c.begin(0, time.Second, 0.5)
	ms := time.Millisecond
	for _, at := range []time.Duration{0, ms / 2, ms, 10 * ms, 10*ms + 1, 11 * ms} {
		c.ask(at)
	}
	// Due at 0.5, 1.5, …: one at 0.5; at 10 one of the nine since then, and the one
	// that is due at 10.5 at 11.
	if c.Sent != 3 || c.Skipped != 8 {
		t.Errorf("%d sent, %d skipped, want 3 and 8", c.Sent, c.Skipped)
	}
}

// TestCount: a stream with a rate ends after its count, without a length, and waits for its answers as
// long as its patience says.
func TestCount(t *testing.T) {
	l := start(t)
	silent := fakedns.Start(t, func(*fakedns.Query) {}).Addr()
	const patience = 30 * time.Millisecond
	r := run(t, l, LoopJob{Server: l.Addr(), Streams: []Stream{
		{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 2000, Count: 30, Sockets: 2, Patience: time.Minute},
		{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 2000, Count: 20, Sockets: 1, Patience: patience, Server: silent},
	}})
	if r[0].Sent != 30 || r[0].Answered != 30 {
		t.Errorf("%d queries sent and %d answered, want 30", r[0].Sent, r[0].Answered)
	}
	if r[1].Sent != 20 || r[1].Lost != 20 || r[1].Elapsed < patience {
		t.Errorf("%d queries sent and %d lost after %v, want 20 after %v", r[1].Sent, r[1].Lost, r[1].Elapsed, patience)
	}
}

// TestJobsInTurn: jobs that come during another one run after it.
func TestJobsInTurn(t *testing.T) {
	l := start(t)
	var jobs sync.WaitGroup
	for range 20 {
		jobs.Go(func() {
			r, err := l.Run(t.Context(), LoopJob{Server: l.Addr(), Streams: []Stream{
				{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Rate: 2000, Count: 10, Sockets: 1, Patience: time.Minute},
			}})
			if err != nil || r[0].Answered != 10 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	jobs.Wait()
}

// TestSources: the sockets of a stream have the addresses in turn.
func TestSources(t *testing.T) {
	from := make(chan netip.Addr, 4)
	up := fakedns.Start(t, func(q *fakedns.Query) {
		from <- q.From.Addr().Unmap()
		q.Reply(oneAddress(q.Msg))
	})
	a, b := netip.MustParseAddr("127.0.2.1"), netip.MustParseAddr("127.0.2.2")
	run(t, start(t), LoopJob{Server: up.Addr(), Streams: []Stream{
		{Questions: [][]byte{ask(t, "a.example.", dns.TypeA)}, Window: 1, Count: 4, Sockets: 3, Sources: []netip.Addr{a, b}, Patience: time.Minute},
	}})
	for i, want := range []netip.Addr{a, b, a, a} {
		if got := <-from; got != want {
			t.Errorf("query %d is from %s, want %s", i, got, want)
		}
	}
}
