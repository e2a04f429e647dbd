package tunnel_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/test/testlog"
)

var (
	pod   = netip.MustParseAddr("10.244.0.1")
	other = netip.MustParseAddr("10.244.0.2")
)

// desk is a detector whose clients are pods.
type desk struct {
	*tunnel.Detector
	t      testing.TB
	now    time.Duration
	owners map[netip.Addr]tunnel.Owner
	log    testlog.Buffer
}

func newDesk(t testing.TB, options string) *desk {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\ntunnel {\n" + options + "\n}\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, now: time.Hour, owners: map[netip.Addr]tunnel.Owner{pod: {Namespace: "shop", Pod: "web", UID: "1"}}}
	d.Detector = tunnel.New(c.Blocks[0].Tunnel, tunnel.Options{
		Logger: slog.New(slog.NewTextHandler(&d.log, nil)), Owner: func(a netip.Addr) tunnel.Owner { return d.owners[a] },
	})
	return d
}

// ask observes queries for n names: the text has the number. It returns how many are over the limit.
func (d *desk) ask(client netip.Addr, n int, text string) (limited int) {
	d.t.Helper()
	for i := range n {
		name, err := wire.ParseName(strings.ReplaceAll(text, "#", fmt.Sprintf("%06d", i)))
		if err != nil {
			d.t.Fatal(err)
		}
		if d.Observe(client, []byte(name), d.now) {
			limited++
		}
	}
	return limited
}

// suspects are the suspects in short.
func (d *desk) suspects() string {
	var list []string
	for _, s := range d.Suspects(d.now) {
		list = append(list, s.Owner.Namespace+"/"+s.Owner.Pod+" "+s.Client.String()+" "+s.Domain.String())
	}
	return strings.Join(list, ", ")
}

// payload is a label as a tunnel makes them.
var payload = strings.Repeat("x", 50)

// TestSuspects: many different names with many bytes below one registered domain make a client a suspect, and nothing else does.
func TestSuspects(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		n          int
		want       string
	}{
		{"a tunnel", payload + "#.evil.test", 600, "evil.test."},
		{"a tunnel in several labels, in other cases", "#." + payload + "." + payload + ".t.evil.co.uk", 600, "evil.co.uk."},
		{"a tunnel below a shared suffix", payload + "#.evil.github.io", 600, "evil.github.io."},
		{"few names", payload + "#.evil.test", 400, ""},
		{"one name", payload + ".evil.test", 5000, ""},
		{"short names", "#.evil.test", 600, ""},
		{"many domains", payload + ".d#.test", 1500, ""},
		{"many domains below a shared suffix", payload + "#.github.io", 1500, ""},
		{"an exempt zone", payload + "#.wanted.test", 600, ""},
		{"beside an exempt zone", payload + "#.unwanted.test", 600, "unwanted.test."},
		{"registered domains themselves", "d#" + payload + ".test", 600, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t, "except wanted.test")
			d.ask(pod, tt.n, tt.text)
			d.ask(other, 100, tt.text)
			want := tt.want
			if want != "" {
				want = "shop/web 10.244.0.1 " + want
			}
			if got := d.suspects(); got != want || strings.Count(d.log.String(), "\n") != strings.Count(want, "/") {
				t.Errorf("the suspects are %q, want %q; the log has %q", got, want, d.log.String())
			}
		})
	}
}

// TestEnd: a suspect is one until a window has passed without, and another pod at its address is none.
func TestEnd(t *testing.T) {
	d := newDesk(t, "window 1m")
	d.ask(pod, 600, payload+"#.evil.test")
	d.now += 119 * time.Second
	if d.suspects() == "" {
		t.Error("no suspect in the window after")
	}
	d.now += 2 * time.Second
	if got := d.suspects(); got != "" {
		t.Errorf("after a window: %s", got)
	}
	d.ask(pod, 600, payload+"#.evil.test")
	if d.suspects() == "" {
		t.Error("no suspect the second time")
	}
	d.owners[pod] = tunnel.Owner{Namespace: "shop", Pod: "next", UID: "2"}
	if got := d.suspects(); got != "" {
		t.Errorf("another pod: %s", got)
	}
	d.ask(pod, 1, payload+".evil.test")
	if got := d.suspects(); got != "" {
		t.Errorf("another pod that asks: %s", got)
	}
	slow := newDesk(t, "window 1m")
	for i := range 20 {
		slow.ask(pod, 400, fmt.Sprint(payload, i, "#.evil.test"))
		slow.now += time.Minute
	}
	if got := slow.suspects(); got != "" {
		t.Errorf("400 names a window: %s", got)
	}
}

// TestLimit: a suspect is limited below that domain only, and nobody else is.
func TestLimit(t *testing.T) {
	d := newDesk(t, "limit 10")
	if n := d.ask(pod, 2000, payload+"#.evil.test"); n < 1400 || n > 1560 {
		t.Errorf("%d of 2,000 are over the limit, of which the first 500 make a suspect", n)
	}
	total := d.Limited()
	for range 100 {
		d.now += 100 * time.Millisecond
		if n := d.ask(pod, 1, payload+"#.evil.test"); n != 0 {
			t.Fatal("a query at the rate is over the limit")
		}
	}
	if n := d.ask(pod, 100, "#.fine.test") + d.ask(other, 100, payload+"#.evil.test"); n != 0 || d.Limited() != total {
		t.Errorf("%d others are over the limit", n)
	}
	d.now += 20 * time.Minute
	if n := d.ask(pod, 100, payload+"#.evil.test"); n != 0 {
		t.Errorf("%d are over the limit when it is a suspect no more", n)
	}
}

// TestBound: the table is bounded, and a tunnel keeps its place in it while another client asks for many domains.
func TestBound(t *testing.T) {
	d := newDesk(t, "")
	for i := range 50 {
		d.ask(pod, 12, fmt.Sprint(payload, i, "#.evil.test"))
		d.ask(other, 1000, fmt.Sprint("www.d", i, "x#.test"))
	}
	if got, want := d.suspects(), "shop/web 10.244.0.1 evil.test."; got != want {
		t.Errorf("the suspects are %q, want %q", got, want)
	}
	if n := d.Pairs(); n != tunnel.MaxPairs {
		t.Errorf("the table has %d pairs, want %d", n, tunnel.MaxPairs)
	}
}

// FuzzObserve: no name makes it panic.
func FuzzObserve(f *testing.F) {
	for _, text := range []string{".", "test.", "a.test.", "a.b.co.uk.", `\.\..x\.co.uk.`, "\\000.\\255.arpa.", strings.Repeat("a.", 127)} {
		f.Add(text)
	}
	d := newDesk(f, "limit 1\nnames 50\nbytes 1024")
	f.Fuzz(func(_ *testing.T, text string) {
		if name, err := wire.ParseName(text); err == nil {
			d.Observe(pod, []byte(name), d.now)
		}
	})
}

// BenchmarkObserve measures the cost of a query that is forwarded.
func BenchmarkObserve(b *testing.B) {
	d := newDesk(b, "")
	name, err := wire.ParseName("www.some.example.com")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		d.Observe(pod, []byte(name), d.now)
	}
}
