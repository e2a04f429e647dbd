// These tests use listeners and limits, which are not exported.

package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
)

// Inside the package: it inspects listeners.

// readerKinds are all ways a reader can wait.
var readerKinds = []struct {
	name   string
	limits Limits
	plain  bool
}{
	{"blocking", Limits{Readers: 2}, false},
	{"blocking, one message at a time", Limits{Readers: 2}, true},
	{"polled", Limits{Readers: 2, Poller: true}, false},
}

// eachReader runs f for each way, with a server that answers by.hand and logs to log,
// if that isn't nil.
func eachReader(t *testing.T, log *resolver.QueryLog, f func(t *testing.T, s *Server, addr netip.AddrPort, z *resolver.Zone)) {
	t.Helper()
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 by.hand"), Log: log}
			s, addr := startReaders(t, w.limits, w.plain, z)
			f(t, s, addr, z)
		})
	}
}

// startReaders is start, where plain makes the readers do without recvmmsg.
func startReaders(t *testing.T, limits Limits, plain bool, zones ...*resolver.Zone) (*Server, netip.AddrPort) {
	t.Helper()
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	s := New(slog.New(slog.DiscardHandler), limits)
	s.limits.oneByOne = plain
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes(zones, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shutdown(t, s) })
	return s, addr
}

func shutdown(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// client asks one question again and again, each as soon as the last was answered.
type client struct {
	net.Conn
	packet []byte
	wait   time.Duration // for a reply, before it asks again
	asked  atomic.Uint64
	again  atomic.Uint64 // questions sent once more because nothing came
}

func newClient(t *testing.T, addr netip.AddrPort) *client {
	t.Helper()
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &client{Conn: conn, wait: patience}
	if c.packet, err = question("by.hand.", dns.TypeA).Pack(); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask asks once, and again if no reply comes.
func (c *client) ask() error {
	var buf [512]byte
	for range 5 {
		if _, err := c.Write(c.packet); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(c.wait))
		n, err := c.Read(buf[:])
		if err == nil && n > len(c.packet) && buf[7] == 1 {
			c.asked.Add(1)
			return nil
		}
		if err != nil && !os.IsTimeout(err) {
			continue // nobody listened for a moment
		}
		c.again.Add(1)
	}
	return os.ErrDeadlineExceeded
}

// until asks until stop is closed.
func (c *client) until(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := c.ask(); err != nil {
			return err
		}
	}
}

// underLoad runs f while two clients ask, which must all be answered at once.
func underLoad(t *testing.T, addr netip.AddrPort, f func(answered func() uint64)) {
	t.Helper()
	stop, failed := make(chan struct{}), make(chan error, 2)
	clients := []*client{newClient(t, addr), newClient(t, addr)}
	for _, c := range clients {
		go func() { failed <- c.until(stop) }()
	}
	f(func() uint64 { return clients[0].asked.Load() + clients[1].asked.Load() })
	close(stop)
	for _, c := range clients {
		if err := <-failed; err != nil {
			t.Errorf("a query had no reply: %v", err)
		}
		if n := c.again.Load(); n > 0 {
			t.Errorf("%d queries had to be sent again", n)
		}
	}
}

// awaitCount waits until the count has grown by n: the readers are at work.
func awaitCount(t *testing.T, count func() uint64, n uint64) {
	t.Helper()
	start := time.Now()
	for from := count(); count() < from+n; runtime.Gosched() {
		if time.Since(start) > patience {
			t.Fatalf("%d queries answered, want %d more", count(), from+n-count())
		}
	}
}

// TestReaderGC: the garbage collector gets its way while readers wait, and
// no query is lost; with traffic and without.
func TestReaderGC(t *testing.T) {
	eachReader(t, nil, func(t *testing.T, _ *Server, addr netip.AddrPort, _ *resolver.Zone) {
		underLoad(t, addr, func(answered func() uint64) {
			for range soak.Choose(10, 30) {
				runtime.GC()
				awaitCount(t, answered, 20)
			}
		})
		for range 10 {
			runtime.GC() // the readers go from one way of waiting to the other
		}
		if err := newClient(t, addr).ask(); err != nil {
			t.Error(err)
		}
	})
}

// TestReaderProfiles: what stops or samples all threads works on readers that wait.
func TestReaderProfiles(t *testing.T) {
	eachReader(t, nil, func(t *testing.T, _ *Server, addr netip.AddrPort, _ *resolver.Zone) {
		underLoad(t, addr, func(answered func() uint64) {
			if err := pprof.StartCPUProfile(io.Discard); err != nil {
				t.Fatal(err)
			}
			awaitCount(t, answered, 500)
			pprof.StopCPUProfile()
			for _, name := range []string{"goroutine", "heap", "allocs", "threadcreate", "block", "mutex"} {
				if err := pprof.Lookup(name).WriteTo(io.Discard, 0); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := trace.Start(io.Discard); err != nil {
				t.Fatal(err)
			}
			awaitCount(t, answered, 200)
			trace.Stop()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			awaitCount(t, answered, 200)
		})
	})
}

// deepHandler is a log handler that takes a lot of stack.
type deepHandler struct{ slog.Handler }

func (deepHandler) Enabled(context.Context, slog.Level) bool { return true }

func (deepHandler) Handle(context.Context, slog.Record) error {
	if growStack(2000) != 2000 {
		panic("the stack has changed")
	}
	return nil
}

// growStack takes about a KiB of stack for each of n.
func growStack(n int) int {
	var frame [128]int
	if n == 0 {
		return 0
	}
	frame[n%len(frame)] = growStack(n-1) + 1
	return frame[n%len(frame)]
}

// TestReaderStack: a reader's stack grows, is moved and shrinks, and what the kernel
// writes to is not on it.
func TestReaderStack(t *testing.T) {
	log := &resolver.QueryLog{Logger: slog.New(deepHandler{}), Rules: []resolver.LogRule{{Success: true}}}
	eachReader(t, log, func(t *testing.T, s *Server, addr netip.AddrPort, _ *resolver.Zone) {
		underLoad(t, addr, func(answered func() uint64) {
			for range 10 {
				awaitCount(t, answered, 20)
				runtime.GC()
			}
		})
		if n := s.Panics(); n > 0 {
			t.Errorf("%d queries panicked", n)
		}
	})
}

// openFDs are the open files of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestReaderShutdown: readers end, whatever they wait for, and give back what they
// hold.
func TestReaderShutdown(t *testing.T) {
	for _, w := range readerKinds {
		for _, state := range []string{"not begun", "silent", "busy"} {
			t.Run(w.name+", "+state, func(t *testing.T) {
				procs, files := runtime.GOMAXPROCS(0), openFDs(t)
				z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 by.hand")}
				addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
				s := New(slog.New(slog.DiscardHandler), w.limits)
				s.limits.oneByOne = w.plain
				if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
					t.Fatal(err)
				}
				switch state {
				case "silent":
					c := newClient(t, addr)
					if err := c.ask(); err != nil {
						t.Fatal(err)
					}
					_ = c.Close()
					for _, p := range s.listeners[ListenAddr{AddrPort: addr}].udp {
						awaitPolling(t, p)
					}
				case "busy":
					underLoad(t, addr, func(answered func() uint64) { awaitCount(t, answered, 1000) })
					files++ // each client's socket, until the test ends
					files++
				}
				shutdown(t, s)
				if n := runtime.GOMAXPROCS(0); n != procs {
					t.Errorf("GOMAXPROCS is %d, was %d", n, procs)
				}
				if n := openFDs(t); n > files {
					t.Errorf("%d files are open, were %d", n, files)
				}
			})
		}
	}
}

// awaitPolling waits until p's reader waits without holding a P.
func awaitPolling(t *testing.T, p udp.Socket) {
	t.Helper()
	b, ok := p.(interface{ Polling() bool })
	if !ok {
		return
	}
	for start := time.Now(); !b.Polling(); runtime.Gosched() {
		if time.Since(start) > patience {
			t.Fatal("the reader does not rest")
		}
	}
}

// TestReaderReplaced: a server that starts on the address of one that stops takes
// over, and what the first had read or not yet read is answered.
func TestReaderReplaced(t *testing.T) {
	eachReader(t, nil, func(t *testing.T, first *Server, addr netip.AddrPort, z *resolver.Zone) {
		lossy := first.limits.Poller // it closes its socket without a last look
		c := newClient(t, addr)
		c.wait = time.Second
		stop, failed := make(chan struct{}), make(chan error, 1)
		go func() { failed <- c.until(stop) }()
		turns := soak.Choose(10, 20)
		if lossy {
			turns = 2 // each with a query that is sent again, a second later
		}
		for range turns {
			awaitCount(t, c.asked.Load, 50)
			next := New(slog.New(slog.DiscardHandler), first.limits)
			if err := next.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
				t.Fatal(err)
			}
			awaitCount(t, c.asked.Load, 50)
			shutdown(t, first)
			first = next
		}
		awaitCount(t, c.asked.Load, 50)
		close(stop)
		if err := <-failed; err != nil {
			t.Errorf("a query had no reply: %v", err)
		}
		// Between a reader's last look at its queue and the end of its socket lie some
		// microseconds, or more if the thread has to make place just there. A reader
		// that does not look loses nearly one query in each turn.
		if n := c.again.Load(); n > uint64(turns/5) && !lossy {
			t.Errorf("%d of %d queries had to be sent again in %d turns", n, c.asked.Load(), turns)
		}
		shutdown(t, first)
	})
}

// TestReaderLateReply: a query that still waits when its address is given up is
// answered all the same, from that address.
func TestReaderLateReply(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			b, asked, release := holdingBackend(t)
			s, addr := startReaders(t, w.limits, w.plain, byHand(t, b.Addr()))
			conn, err := dns.Dial("udp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			<-asked
			ports := s.listeners[ListenAddr{AddrPort: addr}].udp
			if err := s.Listen(nil); err != nil {
				t.Fatal(err)
			}
			for _, p := range ports {
				awaitClosed(t, p)
			}
			close(release)
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
				t.Errorf("the waiting query got %v, %v", m, err)
			}
		})
	}
}

func awaitClosed(t *testing.T, p udp.Socket) {
	t.Helper()
	eventually(t, "the socket to be closed", func() bool {
		f, err := p.Duplicate()
		if err == nil {
			_ = f.Close()
		}
		return err != nil
	})
}

// TestUDPAllocPin: a hit over UDP allocates nothing, counted for its client.
func TestUDPAllocPin(t *testing.T) {
	race.SkipSequential(t)
	_, addr := start(t, Limits{}, byHand(t))
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, udp.ReplyBuffer)
	// What happens once, to the pools and to the deadline, is far below one in a run.
	if n := testing.AllocsPerRun(200, func() {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(query); err != nil {
			t.Error(err)
		}
		if _, err := conn.Read(reply); err != nil {
			t.Error(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestSocketDelay: a server that is asked has samples, by all ways of waiting.
func TestSocketDelay(t *testing.T) {
	eachReader(t, nil, func(t *testing.T, s *Server, addr netip.AddrPort, _ *resolver.Zone) {
		c := newClient(t, addr)
		for s.SocketDelay().Count == 0 {
			if err := c.ask(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
