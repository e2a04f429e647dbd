package tail_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/tail"
)

var (
	client = netip.MustParseAddr("10.0.0.1")
	qname  = []byte("\x03www\x07example\x00")
)

// subscribe adds a subscription until the test ends.
func subscribe(t *testing.T, f *tail.Feed, filter tail.Filter) *tail.Subscription {
	t.Helper()
	s, err := f.Subscribe(filter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestFilter: which queries each filter selects.
func TestFilter(t *testing.T) {
	plain := tail.Key{Client: client, Name: qname, Latency: time.Millisecond}
	with := func(edit func(*tail.Key)) *tail.Key {
		k := plain
		edit(&k)
		return &k
	}
	nxdomain := with(func(k *tail.Key) { k.Rcode = wire.NXDomain })
	dropped := with(func(k *tail.Key) { k.Rcode, k.NoReply = wire.NXDomain, true })
	slow := with(func(k *tail.Key) { k.Latency = time.Second })
	mapped := with(func(k *tail.Key) { k.Client = netip.AddrFrom16(client.As16()) })
	other := with(func(k *tail.Key) { k.Client = netip.MustParseAddr("10.0.0.2") })
	for name, c := range map[string]struct {
		filter    tail.Filter
		clients   []netip.Addr
		want, not []*tail.Key
	}{
		"all":                {want: []*tail.Key{&plain, nxdomain, dropped, slow, other}},
		"a name":             {filter: tail.Filter{Name: "\x03www\x07example\x00"}, want: []*tail.Key{&plain}},
		"names below":        {filter: tail.Filter{Name: "\x07example\x00"}, want: []*tail.Key{&plain}},
		"another name":       {filter: tail.Filter{Name: "\x02ww\x07example\x00"}, not: []*tail.Key{&plain}},
		"an rcode":           {filter: tail.Filter{HasRcode: true, Rcode: wire.NXDomain}, want: []*tail.Key{nxdomain}, not: []*tail.Key{&plain, dropped}},
		"NOERROR":            {filter: tail.Filter{HasRcode: true}, want: []*tail.Key{&plain}, not: []*tail.Key{nxdomain}},
		"slow":               {filter: tail.Filter{Slow: time.Second}, want: []*tail.Key{slow}, not: []*tail.Key{&plain}},
		"a client":           {filter: tail.Filter{Selected: true}, clients: []netip.Addr{client}, want: []*tail.Key{&plain, mapped}, not: []*tail.Key{other}},
		"no client":          {filter: tail.Filter{Selected: true}, clients: []netip.Addr{}, not: []*tail.Key{&plain}},
		"clients not known":  {filter: tail.Filter{Selected: true}, not: []*tail.Key{&plain}},
		"clients without it": {clients: []netip.Addr{}, want: []*tail.Key{&plain}},
	} {
		t.Run(name, func(t *testing.T) {
			f := new(tail.Feed)
			s := subscribe(t, f, c.filter)
			if c.clients != nil {
				s.SetClients(c.clients)
			}
			for _, k := range c.want {
				if !f.Watches(k.Client) || !f.Take(k).Any() {
					t.Errorf("%+v is not selected", k)
				}
			}
			for _, k := range c.not {
				if f.Take(k).Any() {
					t.Errorf("%+v is selected", k)
				}
			}
			for _, k := range append(c.want, c.not...) {
				f.Take(k).Send(new(tail.Query))
			}
			if n := len(s.Queries()); n != len(c.want) {
				t.Errorf("%d queries are sent, want %d", n, len(c.want))
			}
		})
	}
}

// TestFeed: a feed is attached while there are subscriptions, of which there are four at most.
func TestFeed(t *testing.T) {
	if f := (*tail.Feed)(nil); f.Attached() || f.Watches(client) {
		t.Error("a nil feed is attached")
	}
	f := new(tail.Feed)
	var all []*tail.Subscription
	for range 4 {
		all = append(all, subscribe(t, f, tail.Filter{}))
	}
	if _, err := f.Subscribe(tail.Filter{}); !errors.Is(err, tail.ErrTooMany) {
		t.Errorf("a fifth subscription: %v", err)
	}
	all[0].Close()
	all[0].Close()
	f.Take(&tail.Key{}).Send(new(tail.Query))
	for i, s := range all {
		if n := len(s.Queries()); n != min(i, 1) {
			t.Errorf("subscription %d has %d queries", i, n)
		}
		if s.Close(); f.Attached() != (i < 3) {
			t.Errorf("after the end of subscription %d: attached is %v", i, f.Attached())
		}
	}
	taken := f.Take(&tail.Key{})
	taken.Send(new(tail.Query)) // to nobody
	if taken.Any() || f.Watches(client) {
		t.Error("nobody takes it")
	}
}

// TestLost: a subscription gets a thousand queries in a second, and as many as its reader has room for; it
// counts the others.
func TestLost(t *testing.T) {
	f := new(tail.Feed)
	s := subscribe(t, f, tail.Filter{})
	send := func(n int, at time.Duration) {
		for range n {
			f.Take(&tail.Key{Now: at}).Send(new(tail.Query))
		}
	}
	check := func(what string, queued int, limited, slow uint64) {
		t.Helper()
		l, w := s.Lost()
		if n := len(s.Queries()); n != queued || l != limited || w != slow {
			t.Errorf("%s: %d queued, lost %d and %d; want %d, %d and %d", what, n, l, w, queued, limited, slow)
		}
	}
	send(1003, time.Second)
	check("in a second", 1000, 3, 0)
	send(50, 2*time.Second)
	check("in the next one", 1024, 0, 26)
	check("later", 1024, 0, 0)
	for range 1024 {
		<-s.Queries()
	}
	send(10, 2*time.Second)
	check("after a pause", 10, 0, 0)
}

// TestTaken: beyond its limit a subscription takes no query, so that none is described for it; one with room still
// does.
func TestTaken(t *testing.T) {
	f := new(tail.Feed)
	full := subscribe(t, f, tail.Filter{})
	key := &tail.Key{Client: client, Name: qname}
	for range 1000 {
		f.Take(key).Send(new(tail.Query))
	}
	if f.Take(key).Any() {
		t.Error("a query is taken beyond the limit")
	}
	other := subscribe(t, f, tail.Filter{})
	taken := f.Take(key)
	if taken.Send(new(tail.Query)); !taken.Any() || len(full.Queries()) != 1000 || len(other.Queries()) != 1 {
		t.Errorf("%d and %d queries", len(full.Queries()), len(other.Queries()))
	}
}

// TestManyClients: any number of clients can be selected.
func TestManyClients(t *testing.T) {
	for _, n := range []int{1, 8, 9, 500} {
		f := new(tail.Feed)
		s := subscribe(t, f, tail.Filter{Selected: true})
		var addrs []netip.Addr
		for addr := client; len(addrs) < n; addr = addr.Next() {
			addrs = append(addrs, addr)
		}
		s.SetClients(addrs)
		for _, addr := range addrs {
			if !f.Watches(addr) || !f.Watches(netip.AddrFrom16(addr.As16())) {
				t.Errorf("%d clients: %v is not selected", n, addr)
			}
		}
		if f.Watches(client.Prev()) || f.Watches(addrs[n-1].Next()) {
			t.Errorf("%d clients: others are selected", n)
		}
	}
}

// BenchmarkWatches is what a subscription to another client, or to 250 others, costs a query.
func BenchmarkWatches(b *testing.B) {
	for _, n := range []int{1, 250} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := new(tail.Feed)
			s, err := f.Subscribe(tail.Filter{Selected: true})
			if err != nil {
				b.Fatal(err)
			}
			var addrs []netip.Addr
			for addr := client.Next(); len(addrs) < n; addr = addr.Next() {
				addrs = append(addrs, addr)
			}
			s.SetClients(addrs)
			for b.Loop() {
				if f.Watches(client) {
					b.Fatal("selected")
				}
			}
		})
	}
}
