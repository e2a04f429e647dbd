// These tests use lengthPrefix, sockaddr and waiting, which are not exported.

package server

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
)

// Inside the package: it uses buffer sizes and counters that are not exported.

// TestPipelining: queries of one connection are answered as they are ready, and no
// more of them wait at once than the limit says.
func TestPipelining(t *testing.T) {
	b, _, release := holdingBackend(t)
	_, addr := start(t, Limits{}, byHand(t, b.Addr()))
	conn := dial(t, loopback, addr)
	for id, name := range []string{"slow.test.", "slower.test.", "by.hand."} {
		q := question(name, dns.TypeA)
		q.Id = uint16(id)
		if err := conn.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
	}
	m, err := conn.ReadMsg()
	if err != nil || m.Id != 2 {
		t.Fatalf("the first reply is %v, %v; want that of the query that waits for nobody", m, err)
	}
	close(release)
	seen := make(map[uint16]bool)
	for range 2 {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		seen[m.Id] = true
	}
	if !seen[0] || !seen[1] {
		t.Errorf("replies to %v, want both that waited", seen)
	}
}

// TestPipelinedLimit: a query that finds as many waiting as may is not read on from
// before one of them is answered, but what was asked before it is answered first.
func TestPipelinedLimit(t *testing.T) {
	b, _, release := holdingBackend(t)
	s, addr := start(t, Limits{Pipelined: 1}, byHand(t, b.Addr()))
	conn := dial(t, loopback, addr)
	var all []byte
	for _, name := range []string{"slow.test.", "by.hand.", "slower.test.", "by.hand."} {
		all = append(all, frame(t, question(name, dns.TypeA))...)
	}
	if _, err := conn.Conn.Write(all); err != nil {
		t.Fatal(err)
	}
	if m, err := conn.ReadMsg(); err != nil || m.Question[0].Name != "by.hand." {
		t.Fatalf("%v, %v; want the answer that waits for nobody", m, err)
	}
	if n := s.waiting.InUse(); n != 1 {
		t.Errorf("%d queries wait, want one", n)
	}
	close(release)
	for range 3 {
		if _, err := conn.ReadMsg(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFrames: messages whose length is no message's, with good ones between.
func TestFrames(t *testing.T) {
	s, addr := start(t, Limits{}, byHand(t))
	padded := question("by.hand.", dns.TypeA)
	padded.SetEdns0(1232, false)
	padded.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 60000)}}
	for _, c := range []struct {
		name  string
		frame []byte
		rcode int // of the reply, -1 for none
	}{
		{"nothing", []byte{0, 0}, -1},
		{"nothing, often", make([]byte, 10000), -1},
		{"less than a header", []byte{0, 3, 1, 2, 3}, -1},
		{"a response", append([]byte{0, 12, 0, 1, 0x80}, make([]byte, 9)...), -1},
		{"as long as can be", append([]byte{0xFF, 0xFF}, make([]byte, 65535)...), dns.RcodeFormatError},
		{"long and well-formed", frame(t, padded), dns.RcodeSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, loopback, addr)
			if !isServed(conn) {
				t.Fatal("the query before has no answer")
			}
			if _, err := conn.Conn.Write(c.frame); err != nil {
				t.Fatal(err)
			}
			if c.rcode >= 0 {
				m, err := conn.ReadMsg()
				if err != nil || m.Rcode != c.rcode {
					t.Fatalf("reply %v (%v), want %s", m, err, dns.RcodeToString[c.rcode])
				}
			}
			if !isServed(conn) {
				t.Error("the query behind has no answer")
			}
		})
	}
	t.Run("the end in the middle", func(t *testing.T) {
		for _, part := range [][]byte{{0}, {0, 12}, {0, 12, 0}, {0xFF, 0xFF, 0, 1}} {
			conn := dial(t, loopback, addr)
			if _, err := conn.Conn.Write(part); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		}
	})
	eventually(t, "the connections to be gone", func() bool { return connections(s, addr) == 0 })
	if n := s.ConnsCut(); n != 0 {
		t.Errorf("%d connections counted as slow", n)
	}
}

// TestSplit: queries come in pieces of any length, and each is answered once.
func TestSplit(t *testing.T) {
	_, addr := start(t, Limits{}, byHand(t))
	var all []byte
	for id := range 4 {
		q := question("by.hand.", dns.TypeA)
		q.Id = uint16(id)
		all = append(all, frame(t, q)...)
	}
	conn := dial(t, loopback, addr)
	for size := 1; size <= len(all); size++ {
		for rest := all; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if _, err := conn.Conn.Write(rest[:min(size, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
		for id := range 4 {
			m, err := conn.ReadMsg()
			if err != nil || m.Id != uint16(id) || len(m.Answer) != 1 {
				t.Fatalf("pieces of %d bytes: reply %v (%v), want one with ID %d", size, m, err, id)
			}
		}
	}
}

// TestManyAnswers: more replies than are gathered at once, of all sizes.
func TestManyAnswers(t *testing.T) {
	lines := []string{"192.0.2.9 by.hand"}
	for i := range 3000 {
		lines = append(lines, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()+" many.test")
	}
	_, addr := start(t, Limits{}, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, lines...)})
	conn := dial(t, loopback, addr)
	const n = 400
	var all []byte
	for id := range n {
		q := question("by.hand.", dns.TypeA)
		if id%100 == 50 {
			q = question("many.test.", dns.TypeA)
		}
		q.Id = uint16(id)
		all = append(all, frame(t, q)...)
	}
	go func() { _, _ = conn.Conn.Write(all) }()
	for id := range n {
		want := 1
		if id%100 == 50 {
			want = 3000
		}
		m, err := conn.ReadMsg()
		if err != nil || m.Id != uint16(id) || len(m.Answer) != want {
			t.Fatalf("reply %d: %v, want ID %d with %d records", m.Id, err, id, want)
		}
	}
}

// TestHalfClose: who has said all that he has to say gets every answer, and then the
// end.
func TestHalfClose(t *testing.T) {
	b, asked, release := holdingBackend(t)
	_, addr := start(t, Limits{}, byHand(t, b.Addr()))
	conn := dial(t, loopback, addr)
	all := append(frame(t, question("slow.test.", dns.TypeA)), frame(t, question("by.hand.", dns.TypeA))...)
	if _, err := conn.Conn.Write(all); err != nil {
		t.Fatal(err)
	}
	if err := conn.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if m, err := conn.ReadMsg(); err != nil || m.Question[0].Name != "by.hand." {
		t.Fatalf("%v, %v; want the answer that waits for nobody", m, err)
	}
	<-asked
	close(release)
	if m, err := conn.ReadMsg(); err != nil || m.Question[0].Name != "slow.test." {
		t.Fatalf("%v, %v; want the answer that waited", m, err)
	}
	if _, err := conn.Conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
}

// newExchanger sends n queries for by.hand. at once and reads n replies, again and
// again, with nothing allocated on its own side.
func newExchanger(t testing.TB, addr netip.AddrPort, n int) func() {
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
	replies := make([]byte, n*(lengthPrefix+len(reply)))
	return func() {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Conn.Write(queries); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(conn.Conn, replies); err != nil {
			t.Error(err)
		}
	}
}

// TestTCPAllocPin: a hit over TCP allocates nothing, alone or with others.
func TestTCPAllocPin(t *testing.T) {
	race.SkipSequential(t)
	_, addr := start(t, Limits{}, byHand(t))
	for _, n := range []int{1, 20, 500} {
		exchange := newExchanger(t, addr, n)
		// What happens once, to the pools and to the deadline, is far below one in a
		// run; a run is several queries.
		if got := testing.AllocsPerRun(500, exchange); got >= 1 {
			t.Errorf("%d queries at once take %v allocations", n, got)
		}
	}
}

// BenchmarkTCP is the time of client and server together.
func BenchmarkTCP(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(itoa(n)+"at once", func(b *testing.B) {
			_, addr := start(b, Limits{}, byHand(b))
			exchange := newExchanger(b, addr, n)
			b.ReportAllocs()
			for range b.N / n {
				exchange()
			}
		})
	}
}

// BenchmarkIdleTCP tells how much memory a connection holds that has asked once
// and is silent, the kernel's not counted. The clients are bare descriptors, which
// take none. NODENS_SOAK=1 makes it 5,000 connections.
func BenchmarkIdleTCP(b *testing.B) {
	conns := soak.Choose(500, 5000)
	fds := make([]int, conns)
	for b.Loop() {
		s, addr := start(b, Limits{Conns: conns, ClientConns: conns}, byHand(b))
		q := frame(b, question("by.hand.", dns.TypeA))
		before := memoryInUse()
		for i := range fds {
			fd := bareClient(b, addr)
			fds[i] = fd
			reply := make([]byte, lengthPrefix+dns.MinMsgSize)
			if _, err := unix.Write(fd, q); err != nil {
				b.Fatal(err)
			}
			if n, err := unix.Read(fd, reply); n < lengthPrefix || err != nil {
				b.Fatalf("%d bytes, %v", n, err)
			}
		}
		b.ReportMetric(float64(memoryInUse()-before)/float64(conns), "B/conn")
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		eventually(b, "the connections to end", func() bool { return connections(s, addr) == 0 })
	}
}

// bareClient connects a descriptor that blocks.
func bareClient(b *testing.B, to netip.AddrPort) int {
	b.Helper()
	sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.Connect(fd, sa); err != nil {
		b.Fatal(err)
	}
	return fd
}

// memoryInUse is the memory of heap and stacks in use.
func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC() // the first one leaves what pools had
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
