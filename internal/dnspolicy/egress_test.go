package dnspolicy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
)

// fakeFilter is a packet filter that keeps what it is told.
type fakeFilter struct {
	mu      sync.Mutex
	sets    map[string]map[netip.Addr]time.Time // when elements leave, by policy
	pods    map[string][]netip.Addr
	renewed []string
	batches [][]dnspolicy.Element
	fails   string        // a policy whose elements are refused
	blocked chan struct{} // not nil: Add waits for it
}

func (f *fakeFilter) Sync(pods map[string][]netip.Addr, prune bool) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewed = nil
	for policy := range pods {
		if f.sets[policy] == nil {
			f.sets[policy] = make(map[netip.Addr]time.Time)
			f.renewed = append(f.renewed, policy)
		}
	}
	if prune {
		maps.DeleteFunc(f.sets, func(policy string, _ map[netip.Addr]time.Time) bool { _, ok := pods[policy]; return !ok })
	}
	f.pods = pods
	return f.renewed, nil
}

func (f *fakeFilter) Add(list []dnspolicy.Element) error {
	if f.blocked != nil {
		<-f.blocked
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, list)
	for _, e := range list {
		if f.sets[e.Policy] == nil {
			return fmt.Errorf("adding: %w", dnspolicy.ErrNoSet)
		}
		if e.Policy == f.fails {
			return errors.New("refused")
		}
	}
	for _, e := range list {
		f.sets[e.Policy][e.Addr] = time.Now().Add(e.Timeout)
	}
	return nil
}

// left returns for how long f has an address from now on.
func (f *fakeFilter) left(policy, addr string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, ok := f.sets[policy][netip.MustParseAddr(addr)]
	if !ok {
		return 0
	}
	return time.Until(until)
}

func (f *fakeFilter) writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.batches)
}

func newEgress() (*dnspolicy.Egress, *fakeFilter) {
	f := &fakeFilter{sets: make(map[string]map[netip.Addr]time.Time)}
	return dnspolicy.NewEgress(f, slog.New(slog.DiscardHandler)), f
}

// enter makes addresses of answers with that TTL enter a set. It returns how many were missing.
func enter(s *dnspolicy.Set, ttl uint32, addrs ...string) (int, error) {
	var list []dnspolicy.Missing
	for _, text := range addrs {
		if m, ok := s.Lacks(netip.MustParseAddr(text), ttl); ok {
			list = append(list, m)
		}
	}
	if list == nil {
		return 0, nil
	}
	return len(list), dnspolicy.AddMissing(context.Background(), list)
}

// TestEgressTimes: an address is in the set at least for a minute after the TTL of each answer, and answers in between need no write.
func TestEgressTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f := newEgress()
		s := e.Of("a", "p")
		e.Want(map[string][]netip.Addr{"a/p": nil}, true)
		for range 100 {
			if _, err := enter(s, 30, "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "fe80::1", "::"); err != nil {
				t.Fatal(err)
			}
			if left := f.left("a/p", "192.0.2.1"); left < 90*time.Second {
				t.Fatalf("it leaves after %v", left)
			}
			time.Sleep(10 * time.Second)
		}
		if n := f.writes(); n < 15 || n > 21 { // one that finds no set, and one a minute
			t.Errorf("%d writes in 1,000 seconds", n)
		}
		if len(f.sets["a/p"]) != 2 {
			t.Errorf("the set has %v", f.sets["a/p"])
		}
		if _, err := enter(s, 1<<31-1, "192.0.2.2"); err != nil || f.left("a/p", "192.0.2.2") > 25*time.Hour {
			t.Errorf("with the longest TTL it stays for %v: %v", f.left("a/p", "192.0.2.2"), err)
		}
	})
}

// TestEgressBatches: replies that wait for the packet filter are written together, a set that it refuses does not affect others, and no reply
// waits for longer than two seconds.
func TestEgressBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f := newEgress()
		a, b := e.Of("a", "p"), e.Of("b", "p")
		e.Want(map[string][]netip.Addr{"a/p": nil, "b/p": nil}, true)
		if _, err := enter(a, 5, "192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		f.blocked, f.fails = make(chan struct{}), "b/p"
		before := f.writes()
		var all sync.WaitGroup
		errs := make([]error, 40)
		for i := range errs {
			all.Go(func() {
				s := []*dnspolicy.Set{a, b}[i%2]
				_, errs[i] = enter(s, uint32(i), fmt.Sprintf("192.0.2.%d", 10+i/4)) //nolint:gosec // small
			})
		}
		synctest.Wait()
		close(f.blocked)
		all.Wait()
		for i, err := range errs {
			if (err == nil) != (i%2 == 0) {
				t.Errorf("set %d: %v", i%2, err)
			}
		}
		if n := f.writes() - before; n > 6 { // two batches, each at first whole and then by set
			t.Errorf("%d writes for 40 replies", n)
		}
		if st := e.Stats(); st.Failed != 20 || st.Full != 0 {
			t.Errorf("the counters are %+v", st)
		}
		f.blocked, f.fails = make(chan struct{}), ""
		began := time.Now()
		if _, err := enter(a, 5, "192.0.2.200"); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("a reply waits for %v: %v", time.Since(began), err)
		}
		close(f.blocked)
	})
}

// TestEgressFull: a set that is full takes new addresses when others have left, and says so until then.
func TestEgressFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEgress()
		s := e.Of("a", "p")
		e.Want(map[string][]netip.Addr{"a/p": nil}, true)
		addr := netip.MustParseAddr("192.0.0.1")
		for range dnspolicy.MaxEgressAddrs {
			if _, err := enter(s, 5, addr.String()); err != nil {
				t.Fatal(err)
			}
			addr = addr.Next()
		}
		if _, err := enter(s, 5, addr.String()); err == nil || !strings.Contains(err.Error(), "full") {
			t.Errorf("the error is %v", err)
		}
		if _, err := enter(s, 3600, "192.0.0.1"); err != nil {
			t.Errorf("an address that is in the set: %v", err)
		}
		time.Sleep(3 * time.Minute)
		if _, err := enter(s, 5, addr.String()); err != nil {
			t.Errorf("after the others have left: %v", err)
		}
		if st := e.Stats(); st.Full != 1 || st.Failed != 0 {
			t.Errorf("the counters are %+v", st)
		}
	})
}

// TestEgressRun: the sets follow the policies, and an address enters again if another program has removed its set.
func TestEgressRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f := newEgress()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.Run(ctx); close(done) }()
		s := e.Of("a", "p")
		pod := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		e.Want(map[string][]netip.Addr{"a/p": pod, "b/q": nil}, false)
		synctest.Wait()
		if len(f.sets) != 2 || !slices.Equal(f.pods["a/p"], pod) {
			t.Errorf("the sets are %v, the pods %v", f.sets, f.pods)
		}
		_, _ = enter(s, 3600, "192.0.2.1")
		if n, _ := enter(s, 3600, "192.0.2.1"); n != 0 {
			t.Error("the address is written twice")
		}
		f.mu.Lock()
		delete(f.sets, "a/p") // another program
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n, err := enter(s, 3600, "192.0.2.1"); n != 1 || err != nil || f.left("a/p", "192.0.2.1") < time.Hour {
			t.Errorf("after the set is lost: %d are missing, %v", n, err)
		}
		e.Want(nil, true)
		synctest.Wait()
		if len(f.sets) != 0 {
			t.Errorf("without policies the sets are %v", f.sets)
		}
		cancel()
		<-done
	})
}

// TestEgressAllocs: an address that is in the set costs no memory.
func TestEgressAllocs(t *testing.T) {
	e, _ := newEgress()
	s := e.Of("a", "p")
	e.Want(map[string][]netip.Addr{"a/p": nil}, true)
	if _, err := enter(s, 3600, "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("192.0.2.1")
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := s.Lacks(addr, 3600); ok {
			t.Error("it is missing")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
