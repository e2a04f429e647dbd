package server

import (
	"bytes"
	"io"
	"net/netip"
	"runtime"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// exchanger sends n queries for by.hand. at once and reads n replies, again and
// again, with nothing allocated on its own side.
func exchanger(t testing.TB, addr netip.AddrPort, n int) func() {
	t.Helper()
	conn := dial(t, loopback, addr)
	q := frame(t, question("by.hand.", dns.TypeA))
	if _, err := conn.Conn.Write(q); err != nil {
		t.Fatal(err)
	}
	reply, err := conn.ReadMsgHeader(nil)
	if err != nil {
		t.Fatal(err)
	}
	queries := bytes.Repeat(q, n)
	replies := make([]byte, n*(framing+len(reply)))
	return func() {
		if _, err := conn.Conn.Write(queries); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(conn.Conn, replies); err != nil {
			t.Error(err)
		}
	}
}

// TestStreamAllocPin: a hit over TCP allocates nothing, alone or with others.
func TestStreamAllocPin(t *testing.T) {
	_, addr := start(t, Limits{}, byHand(t))
	for _, n := range []int{1, 20, 500} {
		exchange := exchanger(t, addr, n)
		// What happens once, to the pools and to the deadline, is far below one in a
		// run; a run is several queries.
		if got := testing.AllocsPerRun(500, exchange); got >= 1 {
			t.Errorf("%d queries at once take %v allocations", n, got)
		}
	}
}

// BenchmarkStream is the time of client and server together.
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(itoa(n)+"at once", func(b *testing.B) {
			_, addr := start(b, Limits{}, byHand(b))
			exchange := exchanger(b, addr, n)
			b.ReportAllocs()
			for range b.N / n {
				exchange()
			}
		})
	}
}

// BenchmarkIdleStream tells how much memory a connection holds that has asked once
// and is silent, the kernel's not counted. The clients are bare descriptors, which
// take none.
func BenchmarkIdleStream(b *testing.B) {
	const conns = 5000
	fds := make([]int, conns)
	for b.Loop() {
		s, addr := start(b, Limits{Conns: conns, ClientConns: conns}, byHand(b))
		q := frame(b, question("by.hand.", dns.TypeA))
		before := held()
		for i := range fds {
			fd := bareClient(b, addr)
			fds[i] = fd
			reply := make([]byte, framing+dns.MinMsgSize)
			if _, err := unix.Write(fd, q); err != nil {
				b.Fatal(err)
			}
			if n, err := unix.Read(fd, reply); n < framing || err != nil {
				b.Fatalf("%d bytes, %v", n, err)
			}
		}
		b.ReportMetric(float64(held()-before)/conns, "B/conn")
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		eventually(b, "the connections to end", func() bool { return connections(s, addr) == 0 })
	}
}

// bareClient connects a descriptor that blocks.
func bareClient(b *testing.B, to netip.AddrPort) int {
	b.Helper()
	family, sa, err := sockaddr(to)
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.Connect(fd, sa); err != nil {
		b.Fatal(err)
	}
	return fd
}

// held is the memory of heap and stacks in use.
func held() uint64 {
	runtime.GC()
	runtime.GC() // the first one leaves what pools had
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
