// These tests use applyInitial, fallback and run, which are not exported.

package app

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// signpost is a view with endpoints that a test moves, and keeps where to.
type signpost struct {
	mu        sync.Mutex
	endpoints map[string][]netip.AddrPort
	changed   map[string]chan struct{}
	diverted  [][]netip.AddrPort
	err       error
}

func (s *signpost) look(service string, _ uint16) ([]netip.AddrPort, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed[service] == nil {
		s.changed[service] = make(chan struct{})
	}
	return s.endpoints[service], s.changed[service]
}

func (s *signpost) move(service string, to ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []netip.AddrPort
	for _, a := range to {
		list = append(list, netip.MustParseAddrPort(a))
	}
	s.endpoints[service] = list
	if c := s.changed[service]; c != nil {
		close(c)
		delete(s.changed, service)
	}
}

func (s *signpost) divert(_ context.Context, to []netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diverted = append(s.diverted, slices.Clone(to))
	return s.err
}

// taken is where to, and forgets it.
func (s *signpost) taken() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, to := range s.diverted {
		for _, a := range to {
			list = append(list, a.String())
		}
		list = append(list, "")
	}
	s.diverted = nil
	return list
}

func newSignpost(service string) (*signpost, *fallback) {
	s := &signpost{endpoints: make(map[string][]netip.AddrPort), changed: make(map[string]chan struct{})}
	d := newFallback(slog.New(slog.DiscardHandler), service, s.divert)
	view := endpointsFunc(s.look)
	d.view.Store(&view)
	return s, d
}

// TestFallback: the kernel sends queries to the endpoints that there are, or were last.
func TestFallback(t *testing.T) {
	const named, usual = "kube-system/kube-dns-upstream", "kube-system/kube-dns"
	synctest.Test(t, func(t *testing.T) {
		s, d := newSignpost("kube-dns-upstream")
		go d.run(t.Context())
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			check.Equal(t, want, s.taken(), "diverted to")
		}
		calmly := func() { time.Sleep(minInterval) } // of synctest
		expect()
		s.move(usual, "192.0.2.9:53")
		calmly()
		expect("192.0.2.9:53", "")
		s.move(named, "192.0.2.2:53", "192.0.2.1:53")
		calmly()
		expect("192.0.2.1:53", "192.0.2.2:53", "")
		s.move(named, "192.0.2.1:53", "192.0.2.2:53") // nearer
		calmly()
		expect()
		s.move(named) // both of them have gone, and so has the other
		s.move(usual)
		calmly()
		expect()
		for _, to := range []string{"192.0.2.3:53", "192.0.2.4:53", "192.0.2.5:53"} { // a rollout
			s.move(named, to)
		}
		calmly()
		expect("192.0.2.5:53", "")
		s.err = errors.New("the lock is held")
		s.move(named, "192.0.2.6:53")
		calmly()
		expect("192.0.2.6:53", "")
		d.view.Store(nil) // a reload without a kubernetes directive
		d.viewChanged <- struct{}{}
		calmly()
		expect()
	})
}

// TestFallbackInitial: a start waits for endpoints, but not for ever.
func TestFallbackInitial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newSignpost("kube-dns")
		done := make(chan struct{})
		first := func() { d.applyInitial(t.Context()); done <- struct{}{} }
		go first()
		<-done // there are none
		go first()
		synctest.Wait()
		s.move("kube-system/kube-dns", "192.0.2.1:53")
		<-done
		check.Equal(t, []string{"192.0.2.1:53", ""}, s.taken(), "diverted to")
	})
	var none *fallback
	none.applyInitial(t.Context())
	none.run(t.Context())
	none.useView(nil)
}
