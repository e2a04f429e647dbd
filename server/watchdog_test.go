// These tests use progress, which is not exported.

package server

import (
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it checks the size of a reader's counter.

// blockedWriter blocks each write until it is released.
type blockedWriter struct{ entered, release chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	w.entered <- struct{}{}
	<-w.release
	return len(p), nil
}

// TestAlive checks that a server whose readers wait or answer is alive, and that one is not
// while a reader is blocked in the middle of a query.
func TestAlive(t *testing.T) {
	eachReader(t, nil, func(t *testing.T, s *Server, addr netip.AddrPort, z *resolver.Zone) {
		watchdog := s.NewWatchdog()
		for range 3 {
			if !watchdog.Alive() {
				t.Fatal("nobody asks, and the server is not alive")
			}
		}
		underLoad(t, addr, func(answered func() uint64) {
			for range 50 {
				awaitCount(t, answered, 10)
				// Two looks may fall into one batch, but never so many.
				for start := time.Now(); !watchdog.Alive(); runtime.Gosched() {
					if time.Since(start) > patience {
						t.Fatal("the readers answer, and the server is not alive")
					}
				}
			}
		})
	})
	w := blockedWriter{make(chan struct{}), make(chan struct{})}
	log := &resolver.QueryLog{Logger: slog.New(slog.NewTextHandler(w, nil)), Rules: []resolver.LogRule{{Success: true}}, Plain: true}
	eachReader(t, log, func(t *testing.T, s *Server, addr netip.AddrPort, _ *resolver.Zone) {
		asked := make(chan error, 1)
		c := newClient(t, addr)
		go func() { asked <- c.ask() }()
		<-w.entered
		watchdog := s.NewWatchdog()
		watchdog.Alive() // the first that sees this batch
		for range 3 {
			if watchdog.Alive() {
				t.Error("a reader is held up, and the server is alive")
			}
		}
		w.release <- struct{}{}
		if err := <-asked; err != nil {
			t.Error(err)
		}
		for start := time.Now(); !watchdog.Alive(); runtime.Gosched() {
			if time.Since(start) > patience {
				t.Fatal("the reader has gone on, and the server is not alive")
			}
		}
	})
}

// TestAliveAfterForwarding checks that a server is alive that waits after it has forwarded a query. Its reader may have
// returned without a packet, only because the reply of an upstream was there.
func TestAliveAfterForwarding(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
			s, addr := startReaders(t, w.limits, w.plain, &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Forward: resolvertest.Pool(t, b.Addr())})
			c, watchdog := newClient(t, addr), s.NewWatchdog()
			for range 5 {
				if err := c.ask(); err != nil {
					t.Fatal(err)
				}
				watchdog.Alive()
				for start := time.Now(); !watchdog.Alive(); runtime.Gosched() {
					if time.Since(start) > patience {
						t.Fatal("the readers wait, and the server is not alive")
					}
				}
			}
		})
	}
}

// TestProgressCacheLine checks that readers do not share cache lines.
func TestProgressCacheLine(t *testing.T) {
	if size := unsafe.Sizeof(progress{}); size%64 != 0 {
		t.Errorf("what a reader writes has %d bytes, want whole cache lines of 64", size)
	}
}
