package load

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/poll"
)

// TestBudget: a budget takes its burst at once, then its rate, and knows the second with most queries.
func TestBudget(t *testing.T) {
	b := NewBudget(100, 10)
	taken := 0
	ask := func(n int, from, every time.Duration) {
		for i := range n {
			if b.take(from + time.Duration(i)*every) {
				taken++
			}
		}
	}
	ask(30, 0, 0)
	if taken != 10 || b.Dropped() != 20 || b.Arrived() != 30 {
		t.Errorf("of 30 at once: %d taken, %d dropped, %d arrived", taken, b.Dropped(), b.Arrived())
	}
	taken = 0
	ask(400, 2*time.Second, 5*time.Millisecond)
	if taken < 205 || taken > 210 { // the burst, and 100 in each of two seconds
		t.Errorf("of 200 a second for two seconds: %d taken, want 210", taken)
	}
	if n := b.MostPerSecond(); n != 200 {
		t.Errorf("%d in a second, want 200", n)
	}
	if n := NewBudget(1, 1).MostPerSecond(); n != 0 {
		t.Errorf("%d in a second of an unused budget", n)
	}
}

// TestLimit: the upstream drops silently what exceeds its budget, until there is none.
func TestLimit(t *testing.T) {
	l := start(t)
	b := NewBudget(1, 5)
	s := Stream{Questions: [][]byte{ask(t, "a."+Brief, dns.TypeA)}, Rate: 2000, Sockets: 1, Count: 20, Patience: 200 * time.Millisecond}
	limit := func(b *Budget) {
		if err := l.Limit(b); err != nil {
			t.Fatal(err)
		}
	}
	limit(b)
	if r := run(t, l, LoopJob{Server: l.Addr(), Streams: []Stream{s}})[0]; r.Answered < 5 || r.Lost != uint64(b.Dropped()) || b.Arrived() != 20 {
		t.Errorf("of %d queries %d are answered; the budget had %d and dropped %d", r.Sent, r.Answered, b.Arrived(), b.Dropped())
	}
	limit(nil)
	s.Patience = time.Minute
	if r := run(t, l, LoopJob{Server: l.Addr(), Streams: []Stream{s}})[0]; r.Answered != 20 || r.Prompt > 20 {
		t.Errorf("without a budget %d of 20 are answered, %d promptly", r.Answered, r.Prompt)
	}
}

// TestConnect opens more connections than the stream has sockets. The first ones end by a reset.
func TestConnect(t *testing.T) {
	l := start(t)
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const count, sockets = 12, 4
	accepted := make(chan net.Conn, count)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	opened := 0
	results, err := l.Run(t.Context(), LoopJob{Server: server.Addr().(*net.TCPAddr).AddrPort(), Streams: []Stream{{
		Connect: true, Questions: [][]byte{nil}, Rate: 200, Count: count, Sockets: sockets,
		Open: func(i int, open func() error) error {
			if i != opened {
				t.Errorf("socket %d after %d", i, opened)
			}
			opened++
			return open()
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Sent != count || opened != sockets {
		t.Errorf("%d connections of %d sockets, want %d of %d", results[0].Sent, opened, count, sockets)
	}
	for range sockets { // those that are ended may go unnoticed
		c := <-accepted
		defer c.Close()
	}
}

// TestStamp: the time of a datagram is when it arrived, and not when it is read.
func TestStamp(t *testing.T) {
	fd, err := open(netip.Addr{}, netip.AddrPort{}, receiveBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := stamp(fd, true); err != nil {
		t.Fatal(err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(local.(*unix.SockaddrInet4).Port)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	buf, from := make([]byte, 100), address{}
	// The kernel begins to note times a little later.
	poll.Until(t, "a datagram with the time at which it arrived", func() bool {
		before := time.Now()
		if _, err := conn.Write([]byte("text")); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		n, at, errno := receiveStamped(fd, buf, &from)
		if errno != 0 || string(buf[:n]) != "text" || from.Addr != [4]byte{127, 0, 0, 1} {
			t.Fatalf("%q from %v, %v", buf[:max(n, 0)], from.Addr, errno)
		}
		got := time.Unix(0, int64(at))
		return !got.Before(before) && !got.After(sent)
	})
}
