// Inside the package: it compares the whole state of a store.

package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestInspect: the description of entries, fresh, expired and after a failed refresh.
func TestInspect(t *testing.T) {
	now := time.Hour
	cfg := defaults()
	cfg.Stale.For, cfg.Stale.TTL = time.Hour, 30*time.Second
	c := NewStore(testBudget, Options{Clock: func() time.Duration { return now }}).NewCache(cfg)
	answer := question(t, "a.example.", dns.TypeA)
	fetch(t, c, answer, message{answer: []string{"a.example. 60 IN A 192.0.2.1", "a.example. 60 IN A 192.0.2.2"}})
	fetch(t, c, question(t, "a.example.", dns.TypeAAAA, do), message{authority: soaRecord(50, 50)})
	fetch(t, c, question(t, "b.example.", dns.TypeA), message{rcode: dns.RcodeNameError, authority: soaRecord(40, 40)})

	now += 10 * time.Second
	size := func(name string, qtype uint16, i EntryInfo) EntryInfo { // which depends on the layout of entries
		if i.Size < entryOverhead {
			t.Errorf("%s has %d bytes", name, i.Size)
		}
		i.Size, i.Name, i.Type, i.Class = 0, wireName(t, name), qtype, wire.ClassIN
		return i
	}
	got := c.Entries([]byte(wireName(t, "a.example.")))
	if len(got) != 2 {
		t.Fatalf("%d entries: %+v", len(got), got)
	}
	want := []EntryInfo{
		size("a.example.", dns.TypeA, EntryInfo{Answers: 2, Age: 10 * time.Second, TTL: 50 * time.Second, Stale: time.Hour + 50*time.Second, Usable: true, Size: got[0].Size}),
		size("a.example.", dns.TypeAAAA, EntryInfo{DO: true, Denial: true, Age: 10 * time.Second, TTL: 40 * time.Second, Stale: time.Hour + 40*time.Second, Usable: true, Size: got[1].Size}),
	}
	got[0].Size, got[1].Size = 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if i, ok := c.Inspect(question(t, "b.example.", dns.TypeA), now); !ok || !i.Denial || i.Rcode != wire.NXDomain || i.TTL != 30*time.Second {
		t.Errorf("b.example.: %+v %v", i, ok)
	}
	if i, ok := c.Inspect(question(t, "b.example.", dns.TypeTXT), now); ok {
		t.Errorf("another type: %+v", i)
	}

	now += time.Minute
	if i, _ := c.Inspect(answer, now); i.TTL != 0 || !i.Usable || i.Stale != time.Hour-10*time.Second || i.Age != 70*time.Second {
		t.Errorf("expired: %+v", i)
	}
	fetch(t, c, answer, message{rcode: dns.RcodeServerFailure})
	if i, _ := c.Inspect(answer, now); i.Age != -1 || i.Rcode != wire.NoError {
		t.Errorf("after a failed refresh: %+v", i)
	}
	now += time.Hour
	if i, _ := c.Inspect(answer, now); i.Usable || i.Stale != 0 {
		t.Errorf("too old: %+v", i)
	}
}

// TestInspectIsNoUse: descriptions count nothing, and don't change which entry is evicted next.
func TestInspectIsNoUse(t *testing.T) {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 2, 2
	c := NewStore(testBudget, Options{}).NewCache(cfg)
	a := question(t, "a.example.", dns.TypeA)
	for _, name := range []string{"a.example.", "b.example."} {
		fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 60 IN A 192.0.2.1"}})
	}
	before, bytes := c.Stats(), c.Bytes()
	if bytes == 0 || c.Capacity() != (Kinds{2, 2}) {
		t.Errorf("%d bytes, capacity %+v", bytes, c.Capacity())
	}
	for range 3 {
		if _, ok := c.Inspect(a, c.store.clock()); !ok || len(c.Entries([]byte(wireName(t, "a.example.")))) != 1 {
			t.Fatal("the entry is gone")
		}
	}
	if diff := cmp.Diff(before, c.Stats()); diff != "" {
		t.Errorf("counted:\n%s", diff)
	}
	fetch(t, c, question(t, "c.example.", dns.TypeA), message{answer: []string{"c.example. 60 IN A 192.0.2.1"}})
	if i, ok := c.Inspect(a, c.store.clock()); ok {
		t.Errorf("the entry that was described is not the one that is evicted: %+v, %s", i, fmt.Sprint(c.Stats().Entries))
	}
}
