package udp

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/test/peer"
)

// Inside the package: it inspects sockets and the balancer.

// patience ends a test that would hang; no test measures it.
const patience = 30 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

// readerKinds are all ways a reader can wait.
var readerKinds = []struct {
	name string
	Options
}{
	{"blocking", Options{Readers: 2}},
	{"blocking, one message at a time", Options{Readers: 2, OneByOne: true}},
	{"polled", Options{Readers: 2, Poller: true}},
}

// eventually waits until holds is true.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("waiting for %s", what)
		}
	}
}

// openOne opens a socket at addr.
func openOne(addr netip.AddrPort, o Options) (Socket, error) {
	fd, err := socket.OpenUDP(addr)
	if err != nil {
		return nil, err
	}
	return newSocket(fd, addr, o)
}

// noneInherited is for [Open].
func noneInherited() (int, error) { return -1, nil }

// echo sends each packet to p back, and counts the batches.
func echo(p Socket, batches *atomic.Uint64) {
	for b := NewBatch(); p.ReadBatch(b); {
		for i := range b.Packets[:b.N] {
			d := &b.Packets[i]
			d.Reply = append(d.Out[:0], d.In[:d.N]...)
		}
		batches.Add(1)
		p.WriteBatch(b)
	}
}

// TestReuseport: one client alone keeps one reader busy while that is enough, and all
// of them when it is not.
func TestReuseport(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one core has one reader")
	}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	sockets, err := Open(addr, Options{Readers: 2}, noneInherited)
	if err != nil {
		t.Fatal(err)
	}
	AddProcs(len(sockets))
	defer AddProcs(-len(sockets))
	var batches [2]atomic.Uint64
	for i, p := range sockets {
		go echo(p, &batches[i])
	}
	defer CloseAll(sockets)
	conn := dialUDP(t, addr)
	ask := func() {
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err := conn.Write([]byte("?"))
		if err == nil {
			_, err = conn.Read(make([]byte, 2))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	busy := func() (n int) {
		before := [2]uint64{batches[0].Load(), batches[1].Load()}
		for range 200 { // 2^-199: that a fair coin falls on one side only
			ask()
		}
		for i := range batches {
			if batches[i].Load() > before[i] {
				n++
			}
		}
		return n
	}
	if n := busy(); n != 1 {
		t.Errorf("%d readers work for one client, want one", n)
	}
	balancer := sockets[0].(*blockingSocket).balancer
	for i := range 2 * overloadBatches {
		if wide := balancer.spreadSince.Load() > 0; wide != (i >= overloadBatches) {
			t.Fatalf("after %d full batches all readers help: %v", i, wide)
		}
		(&blockingSocket{balancer: balancer, fullBatches: i % overloadBatches, batch: &Batch{N: BatchSize}}).checkLoad()
	}
	if n := busy(); n != 2 && balancer.spreadSince.Load() > 0 {
		t.Errorf("%d readers work when one is not enough, want both", n)
	}
	for start := time.Now(); balancer.spreadSince.Load() > 0; time.Sleep(2 * recvTimeout) { // for want of queries
		ask()
		if time.Since(start) > patience {
			t.Fatal("all readers stay awake")
		}
	}
	if n := busy(); n != 1 {
		t.Errorf("%d readers work afterwards, want one", n)
	}
}

// TestInheritedReuseport checks that packets are distributed over inherited and new sockets
// alike, and go to the first one only while it is alone.
func TestInheritedReuseport(t *testing.T) {
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	var inherited []int
	for range 2 {
		fd, err := socket.OpenUDP(addr)
		if err != nil {
			t.Fatal(err)
		}
		inherited = append(inherited, fd)
	}
	sockets, err := Open(addr, Options{Readers: 4}, func() (fd int, err error) {
		if len(inherited) == 0 {
			return -1, nil
		}
		fd, inherited = inherited[0], inherited[1:]
		return fd, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(sockets)
	conn := dialUDP(t, addr)
	for _, n := range []int{1, 4} {
		if err := sockets[0].(*blockingSocket).balancer.attach(n); err != nil {
			t.Fatal(err)
		}
		for range 100 { // 4 * (3/4)^100: that a fair die with four sides never shows one of them
			if _, err := conn.Write([]byte("packet")); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range sockets {
			if got := !queueEmpty(t, p); got != (i < n) {
				t.Errorf("of %d that are dealt to, number %d has packets: %v", n, i, got)
			}
		}
	}
}

// TestBefore: sockets of other processes that were bound before get no packets. When they are closed, none is lost, and
// [OthersClosed] leaves the packets to one reader again.
func TestBefore(t *testing.T) {
	for _, kind := range readerKinds {
		t.Run(kind.name, func(t *testing.T) {
			addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
			var others []Socket
			for range 3 {
				p, err := openOne(addr, kind.Options)
				if err != nil {
					t.Fatal(err)
				}
				others = append(others, p)
			}
			Balance(others, 0)
			o := kind.Options
			o.Before = len(others)
			sockets, err := Open(addr, o, noneInherited)
			if err != nil {
				t.Fatal(err)
			}
			defer CloseAll(sockets)
			conn := dialUDP(t, addr)
			send := func() {
				for range 100 {
					if _, err := conn.Write([]byte("packet")); err != nil {
						t.Fatal(err)
					}
				}
			}
			holding := func(sockets []Socket) (n int) {
				for _, p := range sockets {
					if !queueEmpty(t, p) {
						n++
					}
				}
				return n
			}
			send()
			if n := holding(others); n != 0 {
				t.Errorf("%d sockets of the others have packets", n)
			}
			if holding(sockets) == 0 {
				t.Error("no socket has packets")
			}
			CloseAll(others)
			CloseAll(sockets[1:])
			OthersClosed(sockets[:1])
			for b := NewBatch(); !queueEmpty(t, sockets[0]); {
				sockets[0].ReadBatch(b)
			}
			send()
			if queueEmpty(t, sockets[0]) {
				t.Error("afterwards the socket has no packets")
			}
		})
	}
}
