package upstream

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

func TestBuckets(t *testing.T) {
	if last := Bucket(Buckets - 1); last != 8192*time.Millisecond {
		t.Errorf("the last bound is %v, want 8.192s as in CoreDNS", last)
	}
	for i := range Buckets {
		if got := bucketOf(Bucket(i)); got != i {
			t.Errorf("%v is in bucket %d, want %d: bounds are inclusive", Bucket(i), got, i)
		}
		if got := bucketOf(Bucket(i) + 1); got != i+1 {
			t.Errorf("%v is in bucket %d, want %d", Bucket(i)+1, got, i+1)
		}
	}
	for took, want := range map[time.Duration]int{-1: 0, 0: 0, time.Hour: Buckets} {
		if got := bucketOf(took); got != want {
			t.Errorf("%v is in bucket %d, want %d", took, got, want)
		}
	}
}

func TestHistograms(t *testing.T) {
	var d durations
	d.observe(wire.NoError, 250*time.Microsecond)
	d.observe(wire.NoError, 300*time.Microsecond)
	d.observe(wire.NXDomain, time.Hour)
	ok := Histogram{Rcode: wire.NoError, Count: 2, Sum: 550 * time.Microsecond}
	for i := range ok.Cumulative {
		ok.Cumulative[i] = 2
	}
	ok.Cumulative[0] = 1
	want := []Histogram{ok, {Rcode: wire.NXDomain, Count: 1, Sum: time.Hour}}
	if diff := cmp.Diff(want, d.snapshot()); diff != "" {
		t.Errorf("wrong histograms (-want +got):\n%s", diff)
	}
}

func TestStatsOfExchanges(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth == 1 {
			r.reply(r.rcode(dns.RcodeNameError))
			return
		}
		answers(r)
	})
	p := start(t, directive(f))
	for range 3 {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
			t.Fatal(err)
		}
	}
	s := p.Stats().Servers[0]
	if s.To != f.addr {
		t.Errorf("the server is %v, want %v", s.To, f.addr)
	}
	got := map[wire.Rcode]uint64{}
	for _, h := range s.Durations {
		got[h.Rcode] = h.Count
		if h.Sum <= 0 {
			t.Errorf("the exchanges with rcode %d took %v", h.Rcode, h.Sum)
		}
	}
	if diff := cmp.Diff(map[wire.Rcode]uint64{wire.NoError: 2, wire.NXDomain: 1}, got); diff != "" {
		t.Errorf("wrong counts (-want +got):\n%s", diff)
	}
}
