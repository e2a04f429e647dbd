package balance_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/balance"
)

// writeFile writes text to a new file of weights.
func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// reply returns the reply to a query for www.example. and the type of records with these records.
func reply(t testing.TB, qtype uint16, records ...string) *wire.Reply {
	t.Helper()
	m := new(dns.Msg).SetQuestion("wWw.example.", qtype)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	q := new(wire.Query)
	if q.Parse(packet) != wire.Serve {
		t.Fatal("not a query")
	}
	m.Response = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	if packet, err = m.Pack(); err != nil {
		t.Fatal(err)
	}
	resp, err := wire.ParseResponse(packet, q)
	if err != nil {
		t.Fatal(err)
	}
	r := new(wire.Reply)
	r.Start(nil, q)
	r.CopyRaw(resp.Packed)
	return r
}

// order returns the answers of r as words, each with its TTL.
func order(t testing.TB, r *wire.Reply) (list []string) {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(bytes.Clone(r.Finish(wire.MaxMessage))); err != nil {
		t.Fatal(err)
	}
	for _, rr := range m.Answer {
		list = append(list, fmt.Sprint(rr.Header().Ttl, " ", strings.Fields(rr.String())[4]))
	}
	return list
}

const weightText = `
# www has three
www.example
192.0.2.1 3
	192.0.2.2   1
::ffff:192.0.2.3 2
192.0.2.1 255
2001:db8::1 9

Other.Example.
192.0.2.9 255
www.example.
2001:db8::2 1
`

// TestWeighted: each address is the first one as often as its weight says, and the others stay but for the one that changes
// places with it.
func TestWeighted(t *testing.T) {
	path := writeFile(t, weightText)
	www := []string{"wwW.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2", "www.example. 3 A 192.0.2.3"}
	alias := append([]string{"www.example. 7 CNAME other.example."}, "other.example. 1 A 192.0.2.8", "other.example. 2 A 192.0.2.9")
	for name, tt := range map[string]struct {
		qtype   uint16
		records []string
		ordered bool
		sum     uint32
		draws   map[uint32]string // the order by the number that is drawn
	}{
		"A": {dns.TypeA, www, false, 6, map[uint32]string{
			0: "1 192.0.2.1, 2 192.0.2.2, 3 192.0.2.3", 2: "1 192.0.2.1, 2 192.0.2.2, 3 192.0.2.3",
			3: "2 192.0.2.2, 1 192.0.2.1, 3 192.0.2.3", 4: "3 192.0.2.3, 2 192.0.2.2, 1 192.0.2.1", 5: "3 192.0.2.3, 2 192.0.2.2, 1 192.0.2.1",
		}},
		"ordered": {dns.TypeA, www, true, 6, map[uint32]string{3: "2 192.0.2.2, 1 192.0.2.1, 3 192.0.2.3"}},
		"AAAA": {dns.TypeAAAA, []string{"www.example. 1 AAAA 2001:db8::2", "www.example. 1 AAAA 2001:db8::1"}, false, 10, map[uint32]string{
			0: "1 2001:db8::2, 1 2001:db8::1", 1: "1 2001:db8::1, 1 2001:db8::2", 9: "1 2001:db8::1, 1 2001:db8::2",
		}},
		"behind an alias": {dns.TypeA, alias, false, 256, map[uint32]string{
			0: "7 other.example., 1 192.0.2.8, 2 192.0.2.9", 1: "7 other.example., 2 192.0.2.9, 1 192.0.2.8",
		}},
		"without weights": {dns.TypeA, []string{"www.example. 7 CNAME x.example.", "x.example. 1 A 192.0.2.1", "x.example. 2 A 192.0.2.2"}, false, 2, map[uint32]string{
			0: "7 x.example., 1 192.0.2.1, 2 192.0.2.2", 1: "7 x.example., 2 192.0.2.2, 1 192.0.2.1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for draw, want := range tt.draws {
				b, err := balance.New(&config.Loadbalance{Weights: path}, balance.Options{Random: func(n uint32) uint32 {
					if n != tt.sum {
						t.Errorf("drawn below %d, want %d", n, tt.sum)
					}
					return draw
				}})
				if err != nil {
					t.Fatal(err)
				}
				r := reply(t, tt.qtype, tt.records...)
				b.Order(r, tt.ordered)
				if got := strings.Join(order(t, r), ", "); got != want {
					t.Errorf("with %d: %s, want %s", draw, got, want)
				}
			}
		})
	}
}

// TestUntouched: what has no weights in an order that matters, and replies with fewer than two addresses, stay.
func TestUntouched(t *testing.T) {
	b, err := balance.New(&config.Loadbalance{Weights: writeFile(t, weightText)}, balance.Options{Random: func(uint32) uint32 {
		t.Error("a number is drawn")
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		records []string
		ordered bool
	}{
		"ordered":          {[]string{"www.example. 7 CNAME x.example.", "x.example. 1 A 192.0.2.2", "x.example. 2 A 192.0.2.1"}, true},
		"one address":      {[]string{"www.example. 1 A 192.0.2.2"}, false},
		"no answer":        {nil, false},
		"no address":       {[]string{"www.example. 1 TXT a", "www.example. 1 TXT b"}, false},
		"several owners":   {[]string{"www.example. 1 A 192.0.2.2", "x.example. 1 A 192.0.2.1"}, false},
		"both kinds of IP": {[]string{"www.example. 1 A 192.0.2.2", "www.example. 1 AAAA 2001:db8::1"}, false},
	} {
		r := reply(t, dns.TypeA, tt.records...)
		want := order(t, reply(t, dns.TypeA, tt.records...))
		b.Order(r, tt.ordered)
		if diff := cmp.Diff(want, order(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPrefer: addresses in the networks come first, in the order of the networks; all others stay in order.
func TestPrefer(t *testing.T) {
	networks := func(list ...string) (prefixes []netip.Prefix) {
		for _, text := range list {
			prefixes = append(prefixes, netip.MustParsePrefix(text))
		}
		return prefixes
	}
	records := []string{
		"www.example. 1 A 10.0.0.1", "www.example. 2 A 10.9.20.1", "www.example. 3 A 192.168.1.1", "www.example. 4 A 10.9.20.2", "www.example. 5 A 10.0.0.2",
	}
	for _, tt := range []struct {
		networks []netip.Prefix
		want     string
	}{
		{networks("10.9.20.0/24"), "2 10.9.20.1, 4 10.9.20.2, 1 10.0.0.1, 3 192.168.1.1, 5 10.0.0.2"},
		{networks("192.168.0.0/16", "10.9.20.0/24"), "3 192.168.1.1, 2 10.9.20.1, 4 10.9.20.2, 1 10.0.0.1, 5 10.0.0.2"},
		{networks("10.0.0.2/32", "10.0.0.0/8"), "5 10.0.0.2, 1 10.0.0.1, 2 10.9.20.1, 4 10.9.20.2, 3 192.168.1.1"},
		{networks("2001:db8::/32", "172.16.0.0/12"), "1 10.0.0.1, 2 10.9.20.1, 3 192.168.1.1, 4 10.9.20.2, 5 10.0.0.2"},
	} {
		for _, ordered := range []bool{true, false} {
			b, err := balance.New(&config.Loadbalance{Prefer: tt.networks}, balance.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r := reply(t, dns.TypeA, records...)
			b.Order(r, ordered)
			if got := strings.Join(order(t, r), ", "); got != tt.want {
				t.Errorf("%v: %s, want %s", tt.networks, got, tt.want)
			}
		}
	}
}

// TestWeightedAndPreferred: the networks decide, and the weights within them.
func TestWeightedAndPreferred(t *testing.T) {
	cfg := &config.Loadbalance{Weights: writeFile(t, weightText), Prefer: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/31")}}
	b, err := balance.New(cfg, balance.Options{Random: func(uint32) uint32 { return 4 }}) // 192.0.2.3
	if err != nil {
		t.Fatal(err)
	}
	r := reply(t, dns.TypeA, "www.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2", "www.example. 3 A 192.0.2.3")
	b.Order(r, false)
	if got := strings.Join(order(t, r), ", "); got != "3 192.0.2.3, 2 192.0.2.2, 1 192.0.2.1" {
		t.Error(got)
	}
}

// TestWeightFaults: a bad file is an error that names the line and what to write.
func TestWeightFaults(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1 1":                   "line 1: no name comes before the address 192.0.2.1; write it on a line of its own",
		"a.test\n\n192.0.2.1":           "line 3: the address 192.0.2.1 has no weight; write a number from 1 to 255 behind it",
		"a.test\nb.test 1":              `line 2: "b.test" is no IP address`,
		"a.test\n192.0.2.1 0":           `line 2: "0" is no weight; allowed: 1 to 255`,
		"a.test\n192.0.2.1 256":         `line 2: "256" is no weight`,
		"a.test\n192.0.2.1 x":           `line 2: "x" is no weight`,
		"a..test":                       "line 1: ",
		"a.test\n192.0.2.1 1 # comment": "line 2: 4 words; write a name, or an address and its weight",
	} {
		path := writeFile(t, text)
		if _, err := balance.New(&config.Loadbalance{Weights: path}, balance.Options{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestFile: what is no file of weights.
func TestFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	if _, err := balance.New(&config.Loadbalance{Weights: missing, Reload: time.Second}, balance.Options{Logger: log}); err != nil || !strings.Contains(out.String(), "does not exist") {
		t.Errorf("a file that may appear: %v, logged %s", err, out.String())
	}
	large := writeFile(t, "")
	if err := os.Truncate(large, balance.MaxFileSize+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{missing: "no such file", t.TempDir(): "not a regular file", large: "larger than 1 MiB"} {
		if _, err := balance.New(&config.Loadbalance{Weights: path}, balance.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// TestReload: the file's changes are used, and a file that is gone or wrong leaves the weights.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights")
	write := func(text string) func() {
		return func() {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		const every = 5 * time.Second
		var out bytes.Buffer
		sum := uint32(0)
		b, err := balance.New(&config.Loadbalance{Weights: path, Reload: every}, balance.Options{
			Logger: slog.New(slog.NewTextHandler(&out, nil)), Random: func(n uint32) uint32 { sum = n; return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.Run(ctx); close(done) }()
		for _, s := range []struct {
			what string
			do   func()
			want uint32 // the sum of the weights of two addresses
		}{
			{"no file", func() {}, 2},
			{"the file appears", write("www.example\n192.0.2.1 5"), 6},
			{"it grows", write("www.example\n192.0.2.1 50"), 51},
			{"it has an error", write("www.example\n192.0.2.1 500"), 51},
			{"it is removed", func() { _ = os.Remove(path) }, 51},
			{"it is empty", write(""), 2},
		} {
			s.do()
			time.Sleep(every) // fake time
			synctest.Wait()
			b.Order(reply(t, dns.TypeA, "www.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2"), false)
			if sum != s.want {
				t.Errorf("%s: the weights add up to %d, want %d", s.what, sum, s.want)
			}
		}
		before := out.Len()
		time.Sleep(every)
		synctest.Wait()
		if out.Len() != before {
			t.Errorf("logged without a change:\n%s", out.String()[before:])
		}
		stop()
		<-done
		for _, text := range []string{"waiting for it", "can't read the weight file", "can't check the weight file", "weight file loaded"} {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%q is not logged", text)
			}
		}
	})
}

// TestNoReload: with `reload 0` the file is read once.
func TestNoReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, sum := writeFile(t, "www.example\n192.0.2.1 5"), uint32(0)
		b, err := balance.New(&config.Loadbalance{Weights: path}, balance.Options{Random: func(n uint32) uint32 { sum = n; return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.Run(ctx); close(done) }()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // fake time
		synctest.Wait()
		b.Order(reply(t, dns.TypeA, "www.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2"), false)
		if sum != 6 {
			t.Errorf("the weights add up to %d, want 6", sum)
		}
		stop()
		<-done
	})
}

// TestAllocations: ordering allocates nothing.
func TestAllocations(t *testing.T) {
	b, err := balance.New(&config.Loadbalance{Weights: writeFile(t, weightText), Prefer: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32")}}, balance.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := reply(t, dns.TypeA, "www.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2", "www.example. 3 A 192.0.2.3")
	if n := testing.AllocsPerRun(100, func() { b.Order(r, false) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestShares: with random numbers, the first addresses are as frequent as their weights, within six standard deviations.
func TestShares(t *testing.T) {
	b, err := balance.New(&config.Loadbalance{Weights: writeFile(t, weightText)}, balance.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 6000
	count := map[string]float64{}
	for range rounds {
		r := reply(t, dns.TypeA, "www.example. 1 A 192.0.2.1", "www.example. 2 A 192.0.2.2", "www.example. 3 A 192.0.2.3")
		b.Order(r, false)
		count[order(t, r)[0]]++
	}
	for first, share := range map[string]float64{"1 192.0.2.1": 3. / 6, "2 192.0.2.2": 1. / 6, "3 192.0.2.3": 2. / 6} {
		want := rounds * share
		if d := count[first] - want; d*d > 36*want*(1-share) {
			t.Errorf("%s is first in %v of %d replies, want about %v", first, count[first], rounds, want)
		}
	}
}

// FuzzWeights: any text is weights or an error.
func FuzzWeights(f *testing.F) {
	f.Add(weightText)
	f.Add("a\n1.1.1.1 1\r\n::1%eth0 2")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > balance.MaxFileSize {
			return
		}
		total, err := balance.SumWeights(text)
		if err != nil && total != 0 {
			t.Errorf("weights of %d and an error", total)
		}
		if lines := strings.Count(text, "\n") + 1; total > lines*255 {
			t.Errorf("weights of %d in %d lines", total, lines)
		}
	})
}
