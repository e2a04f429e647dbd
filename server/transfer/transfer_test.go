package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/transfer"
)

// newTable returns the table of a block for the zone test with these directives.
func newTable(tb testing.TB, all *transfer.Transfers, directives string) *transfer.Table {
	tb.Helper()
	c, err := config.Parse(config.Source{Text: []byte("test {\n" + directives + "\n}\n")})
	if err != nil {
		tb.Fatal(err)
	}
	return transfer.New(c.Blocks[0].Transfer, all)
}

func name(tb testing.TB, text string) wire.Name {
	tb.Helper()
	n, err := wire.ParseName(text)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func soa(tb testing.TB, zone string, serial uint32) wire.RR {
	data := append([]byte{0, 0}, byte(serial>>24), byte(serial>>16), byte(serial>>8), byte(serial))
	return wire.RR{Owner: []byte(name(tb, zone)), Type: wire.TypeSOA, TTL: 60, Data: append(data, make([]byte, 16)...)}
}

// TestPermits: the directive with the longest zone decides, by address and not by port.
func TestPermits(t *testing.T) {
	table := newTable(t, transfer.NewTransfers(nil), "transfer {\nto 192.0.2.1:5300 [2001:db8::1]:53\n}\ntransfer a.test {\nto *\n}\ntransfer b.a.test a.test {\nto 192.0.2.2\n}")
	for _, tt := range []struct {
		zone, client, rule string
		ok                 bool
	}{
		{"test", "192.0.2.1", "test.", true},
		{"test", "2001:db8::1", "test.", true},
		{"test", "192.0.2.2", "test.", false},
		{"x.test", "192.0.2.1", "test.", true},
		{"a.test", "203.0.113.9", "a.test.", true},
		{"b.a.test", "203.0.113.9", "b.a.test.", false},
		{"c.b.a.test", "192.0.2.2", "b.a.test.", true},
		{"xtest", "192.0.2.1", "", false},
	} {
		rule, ok := table.Permits([]byte(name(t, tt.zone)), netip.MustParseAddr(tt.client))
		if rule != "" != (tt.rule != "") || rule != "" && rule.String() != tt.rule || ok != tt.ok {
			t.Errorf("%s for %s: %v by %q, want %v by %q", tt.zone, tt.client, ok, rule, tt.ok, tt.rule)
		}
	}
}

// TestPlaces: a client has one transfer at a time, all have eight, and who waits gets the next place or an error.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transfer.NewTransfers(nil)
		client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
		for i := range 8 {
			if err := all.Acquire(t.Context(), client(i)); err != nil {
				t.Fatal(err)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for err, acquire := range map[error]func() error{
			transfer.ErrBusy: func() error { return all.Acquire(t.Context(), client(8)) },
			context.Canceled: func() error { return all.Acquire(ended, client(8)) },
		} {
			if got := acquire(); !errors.Is(got, err) {
				t.Errorf("a ninth client: %v, want %v", got, err)
			}
		}
		all.Release(client(7))
		if err := all.Acquire(t.Context(), client(0)); !errors.Is(err, transfer.ErrBusy) {
			t.Errorf("a second transfer of a client: %v", err)
		}
		got := make(chan error)
		go func() { got <- all.Acquire(t.Context(), client(0)) }()
		synctest.Wait()
		all.Release(client(0))
		if err := <-got; err != nil {
			t.Errorf("after the first transfer of the client: %v", err)
		}
	})
}

// TestStream: all records arrive in order between two SOA records, a message has 16 KiB at most or one record, and a record
// that fits into no message is an error.
func TestStream(t *testing.T) {
	first := soa(t, "test", 7)
	for sizes, want := range map[string]string{
		"":                        "1 2",
		"10 10 10":                "1 5",
		"16000 16000 16000":       "3 5",
		"300 40000 300 64000 300": "5 7",
		"10 65000 10":             "2 2 error",
	} {
		var records []wire.RR
		for i, size := range strings.Fields(sizes) {
			var n int
			_, _ = fmt.Sscan(size, &n)
			records = append(records, wire.RR{Owner: []byte(name(t, fmt.Sprintf("n%d.test", i))), Type: 65280, TTL: uint32(i), Data: make([]byte, n)})
		}
		s := transfer.NewStream(first, slices.Values(slices.Concat(records, []wire.RR{first})))
		var q wire.Query
		if q.Parse(wire.AppendQuery(nil, 1, first.Owner, wire.TypeAXFR, nil, 1232)) != wire.Serve {
			t.Fatal("no query")
		}
		messages, got := 0, 0
		var err error
		for s.More() && err == nil {
			var r wire.Reply
			r.Start(nil, &q)
			err = s.Fill(&r)
			n := r.Count(wire.Answer)
			got += n
			if m := r.Finish(wire.MaxMessage); err == nil && (len(m) > 16<<10+1024 && n > 1 || n == 0 || m[2]&0x04 == 0 || m[2]&0x02 != 0) {
				t.Errorf("%q: a message of %d bytes with %d records, flags %x", sizes, len(m), n, m[2:4])
			}
			messages++
		}
		s.Close()
		text := fmt.Sprint(messages, " ", got)
		if err != nil {
			text += " error"
		}
		if text != want {
			t.Errorf("%q: messages, records: %s, want %s", sizes, text, want)
		}
	}
}

// TestUpToDate: serials are compared as RFC 1982 says.
func TestUpToDate(t *testing.T) {
	for _, tt := range []struct {
		has, client uint32
		want        bool
	}{{7, 7, true}, {7, 6, false}, {7, 8, true}, {0, 1<<32 - 1, false}, {1<<32 - 1, 0, true}, {7, 0, false}} {
		if got := transfer.UpToDate(soa(t, "test", tt.has), tt.client); got != tt.want {
			t.Errorf("the zone has %d, the client %d: %v", tt.has, tt.client, got)
		}
	}
}

// notifier records the attempts to notify, with the seconds since the start.
type notifier struct {
	began time.Time
	list  []string
	reply func(attempt int) (wire.Rcode, error)
}

func (n *notifier) exchange(ctx context.Context, source netip.Addr, to netip.AddrPort, soa wire.RR) (wire.Rcode, error) {
	n.list = append(n.list, fmt.Sprintf("%v %v %d", time.Since(n.began), to, soa.Serial()))
	return n.reply(len(n.list))
}

// TestNotify: each server is told of the newest version, five times at most with growing pauses, until it answers.
func TestNotify(t *testing.T) {
	silent := func(int) (wire.Rcode, error) { return 0, errors.New("no answer") }
	tests := map[string]struct {
		directives string
		zone       string
		reply      func(int) (wire.Rcode, error)
		again      time.Duration // a new version comes after this time
		want       []string
		counts     string
	}{
		"accepted": {"transfer {\nto 192.0.2.1\n}", "test", func(int) (wire.Rcode, error) { return wire.NoError, nil }, 0,
			[]string{"0s 192.0.2.1:53 1"}, "test. accepted 1"},
		"silent": {"transfer {\nto 192.0.2.1:54\n}", "test", silent, 0,
			[]string{"0s 192.0.2.1:54 1", "2s 192.0.2.1:54 1", "6s 192.0.2.1:54 1", "14s 192.0.2.1:54 1", "30s 192.0.2.1:54 1"}, "test. failed 1"},
		"refused": {"transfer {\nto 192.0.2.1\n}", "test", func(int) (wire.Rcode, error) { return wire.Refused, nil }, 0,
			[]string{"0s 192.0.2.1:53 1"}, "test. failed 1"},
		"late": {"transfer {\nto 192.0.2.1\n}", "test", func(n int) (wire.Rcode, error) {
			if n < 3 {
				return silent(n)
			}
			return wire.NoError, nil
		}, 0, []string{"0s 192.0.2.1:53 1", "2s 192.0.2.1:53 1", "6s 192.0.2.1:53 1"}, "test. accepted 1"},
		"changes meanwhile": {"transfer {\nto 192.0.2.1\n}", "test", func(n int) (wire.Rcode, error) {
			if n < 3 {
				return silent(n)
			}
			return wire.NoError, nil
		}, 3 * time.Second, []string{"0s 192.0.2.1:53 1", "2s 192.0.2.1:53 1", "3s 192.0.2.1:53 2"}, "test. accepted 1"},
		"nobody":          {"transfer {\nto *\n}", "test", silent, 0, nil, ""},
		"another zone":    {"transfer a.test {\nto 192.0.2.1\n}", "test", silent, 0, nil, ""},
		"a zone below it": {"transfer {\nto 192.0.2.1\n}", "a.test", func(int) (wire.Rcode, error) { return 0, nil }, 0, []string{"0s 192.0.2.1:53 1"}, "a.test. accepted 1"},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := transfer.NewTransfers(nil)
				n := &notifier{began: time.Now(), reply: tt.reply}
				all.SetExchange(n.exchange)
				table := newTable(t, all, tt.directives)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { table.Run(ctx); close(ended) }()
				table.Notify(soa(t, tt.zone, 1))
				if tt.again > 0 {
					time.Sleep(tt.again)
					table.Notify(soa(t, tt.zone, 2))
				}
				time.Sleep(time.Hour)
				cancel()
				<-ended
				if d := cmp.Diff(tt.want, n.list); d != "" {
					t.Errorf("attempts (-want +got):\n%s", d)
				}
				var counts []string
				all.EachNotify(func(zone, result string, n uint64) {
					if n > 0 {
						counts = append(counts, fmt.Sprint(zone, " ", result, " ", n))
					}
				})
				if got := strings.Join(counts, ", "); got != tt.counts {
					t.Errorf("counted %q, want %q", got, tt.counts)
				}
			})
		})
	}
}

// TestAnnounce: servers are told of each version once, of one a minute at most, and of the newest in the end.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transfer.NewTransfers(nil)
		n := &notifier{began: time.Now(), reply: func(int) (wire.Rcode, error) { return wire.NoError, nil }}
		all.SetExchange(n.exchange)
		table := newTable(t, all, "transfer {\nto 192.0.2.1\n}")
		go table.Run(t.Context())
		for second := range 180 {
			serial := uint32(1)
			switch {
			case second >= 150:
				serial = 40
			case second >= 30 && second < 100: // a change every other second
				serial = uint32(second-30)/2 + 2
			case second >= 100:
				serial = 36
			}
			table.Announce(soa(t, "test", serial))
			synctest.Wait()
			table.Announce(soa(t, "a.test", 7))
			time.Sleep(time.Second)
		}
		want := []string{"0s 192.0.2.1:53 1", "0s 192.0.2.1:53 7", "1m0s 192.0.2.1:53 17", "2m0s 192.0.2.1:53 36"}
		if d := cmp.Diff(want, n.list); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		time.Sleep(time.Minute)
		table.Announce(soa(t, "test", 40))
		synctest.Wait()
		if got := n.list[len(n.list)-1]; got != "4m0s 192.0.2.1:53 40" {
			t.Errorf("the newest version is told as %s", got)
		}
	})
}

// TestNotifies: only named servers are told, and only of the zones of their directive.
func TestNotifies(t *testing.T) {
	table := newTable(t, transfer.NewTransfers(nil), "transfer {\nto *\n}\ntransfer a.test {\nto * 192.0.2.1\n}")
	for zone, want := range map[string]bool{"test": false, "a.test": true, "x.a.test": true, "example": false} {
		if got := table.Notifies(name(t, zone)); got != want {
			t.Errorf("%s: %v, want %v", zone, got, want)
		}
	}
}
