package tail_test

import (
	"errors"
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
				if !f.Wants(k) {
					t.Errorf("%+v is not selected", k)
				}
			}
			for _, k := range c.not {
				if f.Wants(k) {
					t.Errorf("%+v is selected", k)
				}
			}
			for _, k := range append(c.want, c.not...) {
				f.Send(k, new(tail.Query))
			}
			if n := len(s.Queries()); n != len(c.want) {
				t.Errorf("%d queries are sent, want %d", n, len(c.want))
			}
		})
	}
}

// TestFeed: a feed is attached while there are subscriptions, of which there are four at most.
func TestFeed(t *testing.T) {
	if (*tail.Feed)(nil).Attached() {
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
	f.Send(&tail.Key{}, new(tail.Query))
	for i, s := range all {
		if n := len(s.Queries()); n != min(i, 1) {
			t.Errorf("subscription %d has %d queries", i, n)
		}
		if s.Close(); f.Attached() != (i < 3) {
			t.Errorf("after the end of subscription %d: attached is %v", i, f.Attached())
		}
	}
	f.Send(&tail.Key{}, new(tail.Query)) // to nobody
	if f.Wants(&tail.Key{}) {
		t.Error("nobody wants it")
	}
}

// TestLost: a subscription gets a thousand queries in a second, and as many as its reader has room for; it
// counts the others.
func TestLost(t *testing.T) {
	f := new(tail.Feed)
	s := subscribe(t, f, tail.Filter{})
	send := func(n int, at time.Duration) {
		for range n {
			f.Send(&tail.Key{Now: at}, new(tail.Query))
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
