// These tests use connections and the listeners of a Server, which are not exported.

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// limitedConns returns how many connections of each client the table counts as limited.
func limitedConns(s *Server, addr netip.AddrPort) map[string]uint64 {
	counts := make(map[string]uint64)
	for _, c := range s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes.Clients.Report(clients.Pods, clients.Minute).Clients {
		if n := c.Total.Limited[clients.ReasonConnections]; n > 0 {
			counts[c.Addrs[0].String()] = n
		}
	}
	return counts
}

// TestFewOpenFiles: where the process may have few files open, the connections of two addresses leave half of them.
func TestFewOpenFiles(t *testing.T) {
	const files = 1024
	var before unix.Rlimit
	check.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	t.Cleanup(func() { check.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
	check.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}))
	s := New(slog.New(slog.DiscardHandler), Limits{})
	if got := s.Usage().Conns.Limit; got != files/4 {
		t.Errorf("%d connections, want %d", got, files/4)
	}
}

// TestClientHalf: one client may have half of the connections.
func TestClientHalf(t *testing.T) {
	const total = 8
	s, addr := start(t, Limits{Conns: total, IdleTimeout: time.Hour}, byHand(t))
	for i := range total {
		if conn := dial(t, loopback, addr); !isServed(conn) {
			t.Fatalf("connection %d is not served", i+1)
		}
	}
	if n := connections(s, addr); n != total/2 {
		t.Errorf("a client alone has %d connections of %d", n, total)
	}
}

// TestFullListener: below the limit of one client, the client with the most connections loses the one
// that has been idle longest; the others keep theirs, and new clients are served.
func TestFullListener(t *testing.T) {
	const total, many = 16, 10
	s, addr := start(t, Limits{Conns: total, ClientConns: total, IdleTimeout: time.Hour}, byHand(t))
	open := func(client byte) *dns.Conn {
		t.Helper()
		conn := dial(t, netip.AddrFrom4([4]byte{127, 0, 3, client}), addr)
		if !isServed(conn) {
			t.Fatalf("a connection of client %d is not served", client)
		}
		return conn
	}
	var first, others []*dns.Conn // first are the ones that open first, and are idle longest
	for range many {
		first = append(first, open(1))
	}
	for i := range total - many {
		others = append(others, open(byte(2+i)))
	}
	if n := connections(s, addr); n != total {
		t.Fatalf("%d connections, want %d", n, total)
	}
	// Its first connection has been used last.
	if !isServed(first[0]) {
		t.Fatal("a connection of the client with the most is not served")
	}
	for i := range 4 {
		others = append(others, open(byte(20+i)))
	}
	for i, conn := range first[1:5] {
		if !isClosed(conn) {
			t.Errorf("connection %d of the client with the most is still there", i+1)
		}
	}
	for i, conn := range append(others, append(first[5:], first[0])...) {
		if !isServed(conn) {
			t.Errorf("connection %d is gone", i)
		}
	}
	// It gets no more than it has while others have one each.
	first = append(first, open(1))
	if !isClosed(first[5]) {
		t.Error("the client with the most does not lose its own connection for its new one")
	}
	if n := s.ConnsEvicted(); n != 5 {
		t.Errorf("%d connections evicted, want 5", n)
	}
	if got := fmt.Sprint(limitedConns(s, addr)); got != "map[127.0.3.1:5]" {
		t.Errorf("counted as limited: %s", got)
	}
}

// TestRefusedConnIsCounted: a connection that is refused counts for its client.
func TestRefusedConnIsCounted(t *testing.T) {
	b, asked, release := holdingBackend(t)
	defer close(release)
	s, addr := start(t, Limits{Conns: 1, IdleTimeout: time.Hour}, byHand(t, b.Addr()))
	if err := dial(t, loopback, addr).WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	<-asked
	if isServed(dial(t, netip.MustParseAddr("127.0.3.9"), addr)) {
		t.Error("a connection is served for which one with a query that waits had to go")
	}
	if got := fmt.Sprint(limitedConns(s, addr)); got != "map[127.0.3.9:1]" {
		t.Errorf("counted as limited: %s", got)
	}
}

// oneShots asks queries on a connection each until stop is closed, and returns how many it has asked and the
// errors.
func oneShots(addr netip.AddrPort, names []string, stop <-chan struct{}) (asked int, err error) {
	for ; ; asked++ {
		select {
		case <-stop:
			return asked, err
		default:
		}
		if e := oneShot(addr, names[asked%len(names)]); e != nil {
			err = errors.Join(err, e)
		}
	}
}

func oneShot(addr netip.AddrPort, name string) error {
	conn, err := net.DialTimeout("tcp", addr.String(), patience)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := dns.Conn{Conn: conn}
	if err := c.WriteMsg(question(name, dns.TypeA)); err != nil {
		return fmt.Errorf("asking %s from %s: %w", name, conn.LocalAddr(), err)
	}
	m, err := c.ReadMsg()
	if err == nil && len(m.Answer) != 1 {
		err = fmt.Errorf("answer %v", m)
	}
	if err != nil {
		return fmt.Errorf("the answer to %s at %s: %w", name, conn.LocalAddr(), err)
	}
	return nil
}

// TestSuspendOneShots: while two servers hand their sockets and connections to each other and back, no
// connection with a single query is lost, and none counts as limited.
func TestSuspendOneShots(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	z := slowZone(t)
	a, addr := startReaders(t, Limits{}, false, z)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			n, err := oneShots(addr, []string{"by.hand.", "slow" + itoa(i) + ".test.", "by.hand."}, stop)
			asked.Add(int64(n))
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range rounds {
		b := successor(t, a, Limits{}, plainConfig(addr, z))
		suspendInto(t, a, b)
		// b gives back.
		a.Resume()
		suspendInto(t, b, a)
		if n := b.ConnsEvicted() + b.ConnsRefused(); n > 0 {
			t.Errorf("%d connections closed because of the limits", n)
		}
		shutdown(t, b)
	}
	close(stop)
	wg.Wait()
	if n := a.ConnsEvicted() + a.ConnsRefused(); n > 0 {
		t.Errorf("%d connections closed because of the limits", n)
	}
	if asked.Load() < int64(rounds) {
		t.Errorf("%d queries in %d rounds", asked.Load(), rounds)
	}
}

// TestBusyListener: while a client keeps all its connections busy, others get connections at once; when all are in use, a busy
// one of the client with most goes, although its query still waits.
func TestBusyListener(t *testing.T) {
	const total = 32
	b, _, release := holdingBackend(t)
	defer close(release)
	s, addr := start(t, Limits{Conns: total, ClientConns: total, IdleTimeout: time.Hour}, byHand(t, b.Addr()))
	l := s.listeners[ListenAddr{AddrPort: addr}].tcp
	busy := func() (n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns.All() {
			if _, is := c.Activity(); is {
				n++
			}
		}
		return n
	}
	attacker := netip.MustParseAddr("127.0.3.1")
	var held []*dns.Conn
	for i := range total {
		conn := dial(t, attacker, addr)
		if conn.WriteMsg(question("slow"+itoa(i)+".test.", dns.TypeA)) == nil {
			held = append(held, conn)
		}
		eventually(t, "the query to wait, or the connection to be closed", func() bool { return busy() == i+1 || s.ConnsRefused() > 0 })
		if s.ConnsRefused() > 0 {
			break
		}
	}
	if n := busy(); n >= total || n < total*3/4 {
		t.Fatalf("a client alone has %d busy connections of %d", n, total)
	}
	// Others take what is free, and keep it busy.
	for i := busy(); i < total; i++ {
		conn := dial(t, netip.AddrFrom4([4]byte{127, 0, 3, byte(100 + i)}), addr)
		if !isServed(conn) {
			t.Fatalf("a client is not served beside %d busy connections", busy())
		}
		if err := conn.WriteMsg(question("slow"+itoa(i)+".test.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the query to wait", func() bool { return busy() == i+1 })
	}
	if n := s.ConnsEvicted(); n != 0 {
		t.Fatalf("%d connections evicted while some are free", n)
	}
	if !isServed(dial(t, netip.MustParseAddr("127.0.3.99"), addr)) {
		t.Error("a client is not served while all connections are busy")
	}
	if n := s.ConnsEvicted(); n != 1 {
		t.Errorf("%d connections evicted, want a busy one", n)
	}
	eventually(t, "the connection that was evicted to be closed, although its query still waits", func() bool {
		return slices.ContainsFunc(held, func(conn *dns.Conn) bool {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			return isClosed(conn)
		})
	})
}
