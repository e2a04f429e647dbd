// These tests use socketShares, which is not exported.

package udp

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/podrange"
)

// simulated is a reader and the queue of its socket in simulated time: packets arrive at fixed intervals,
// and the reader takes a fixed time to read a packet and a longer one to answer it.
type simulated struct {
	shares       Shares
	off          bool // the reader answers all packets
	read, answer time.Duration
	queueLength  int
	sources      []*simulatedClient

	now   time.Duration
	queue []*simulatedClient
	drops uint32
	// stallEvery and stall are how often the reader is not scheduled, and for how long; 0 is never.
	stallEvery, stall, stalled time.Duration
}

// simulatedClient sends a packet each interval.
type simulatedClient struct {
	addr           netip.Addr
	interval, next time.Duration
	sent           int
	lost           int // in the full queue
	dropped        int // by the reader
	answered       int
}

// memory implements memoryReader.
func (s *simulated) Memory(m *Memory) syscall.Errno {
	m[meminfoRmemAlloc], m[meminfoRcvbuf], m[meminfoDrops] = uint32(len(s.queue)), uint32(s.queueLength), s.drops
	return 0
}

// arrive puts the packets into the queue that have come by now.
func (s *simulated) arrive() {
	for {
		first := s.sources[0]
		for _, c := range s.sources[1:] {
			if c.next < first.next {
				first = c
			}
		}
		if first.next > s.now {
			return
		}
		first.next += first.interval
		first.sent++
		if len(s.queue) >= s.queueLength {
			first.lost++
			s.drops++
			continue
		}
		s.queue = append(s.queue, first)
	}
}

// run simulates the reader until that time.
func (s *simulated) run(until time.Duration) {
	for s.now < until {
		s.arrive()
		n := min(len(s.queue), BatchSize)
		if n == 0 {
			s.now += time.Microsecond
			continue
		}
		batch := s.queue[:n]
		s.queue = s.queue[n:]
		s.now += time.Duration(n) * s.read
		shed := !s.off && s.shares.Begin(n, s.now, s)
		for _, c := range batch {
			if shed && !s.shares.Admit(c.addr) {
				c.dropped++
				continue
			}
			c.answered++
			s.now += s.answer
		}
		if s.stall > 0 && s.now-s.stalled > s.stallEvery {
			s.now += s.stall
			s.stalled = s.now
		}
	}
}

// reset forgets what the clients have counted.
func (s *simulated) reset() {
	for _, c := range s.sources {
		c.sent, c.lost, c.dropped, c.answered = 0, 0, 0, 0
	}
}

// newSimulated returns a reader that answers 100,000 packets a second or drops 2,000,000, and 20 clients
// that ask 50 times a second each. flooders send rate packets a second together.
func newSimulated(flooders, rate int) *simulated {
	s := &simulated{read: 500 * time.Nanosecond, answer: 9500 * time.Nanosecond, queueLength: 4096}
	for i := range 20 {
		s.sources = append(s.sources, &simulatedClient{
			addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), interval: 20 * time.Millisecond, next: time.Duration(i) * time.Millisecond,
		})
	}
	for i := range flooders {
		interval := time.Duration(flooders) * time.Second / time.Duration(rate)
		s.sources = append(s.sources, &simulatedClient{
			addr: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), interval: interval, next: 100*time.Millisecond + interval*time.Duration(i)/time.Duration(flooders),
		})
	}
	return s
}

// sum adds up the victims, and the flooders.
func (s *simulated) sum() (victims, flooders simulatedClient) {
	for i, c := range s.sources {
		to := &victims
		if i >= 20 {
			to = &flooders
		}
		to.sent += c.sent
		to.lost += c.lost
		to.dropped += c.dropped
		to.answered += c.answered
	}
	return victims, flooders
}

// TestSocketShares: floods of ten times what the reader can answer. Clients that ask little lose nothing of
// what reaches the reader, and soon nothing at all; the flood gets most of the rest. Without shares they lose
// as large a part as the flood.
func TestSocketShares(t *testing.T) {
	const second = 100_000 // packets that the reader can answer
	for _, flooders := range []int{1, 5, 50} {
		t.Run(fmt.Sprintf("%d clients flood", flooders), func(t *testing.T) {
			off := newSimulated(flooders, 10*second)
			off.off = true
			off.run(400 * time.Millisecond)
			if v, _ := off.sum(); v.lost < v.sent/2 {
				t.Errorf("without shares: %+v, so the flood is harmless", v)
			}
			s := newSimulated(flooders, 10*second)
			s.run(200 * time.Millisecond) // the first 100 ms of the flood
			v, f := s.sum()
			t.Logf("the first 100 ms: victims %+v, flood %+v", v, f)
			if v.dropped > 0 || v.lost > v.sent/4 {
				t.Errorf("victims in the first 100 ms: %+v", v)
			}
			s.reset()
			s.run(700 * time.Millisecond)
			v, f = s.sum()
			t.Logf("500 ms: victims %+v, flood %+v", v, f)
			if v.lost+v.dropped > 0 || v.sent < 490 {
				t.Errorf("victims: %+v, want none lost", v)
			}
			// Reading the flood takes half of the time.
			if f.answered < second/8 {
				t.Errorf("%d packets of the flood answered, want at least half of what is possible beside it", f.answered)
			}
			least, most := s.sources[20].answered, 0
			for _, c := range s.sources[20:] {
				least, most = min(least, c.answered), max(most, c.answered)
			}
			if least < most*9/10 {
				t.Errorf("clients that flood have from %d to %d packets answered, want equal shares", least, most)
			}
		})
	}
}

// TestSocketSharesUnequal: a client that asks for less than its share loses nothing beside floods that do.
func TestSocketSharesUnequal(t *testing.T) {
	s := newSimulated(2, 500_000)
	s.sources[0].interval = 200 * time.Microsecond // 5,000 a second, a twentieth of what the reader can answer
	s.run(300 * time.Millisecond)
	s.reset()
	s.run(1300 * time.Millisecond)
	if c := s.sources[0]; c.lost+c.dropped > 0 || c.answered < 4900 {
		t.Errorf("a client with 5,000 a second: %+v", c)
	}
}

// TestSocketSharesSlow: in the queue of a slow reader, packets of a third of a second wait. Clients that have
// asked all that time lose none of them.
func TestSocketSharesSlow(t *testing.T) {
	s := newSimulated(1, 20_000)
	s.read, s.answer = 5*time.Microsecond, 95*time.Microsecond
	s.run(2 * time.Second)
	v, f := s.sum()
	t.Logf("victims %+v, flood %+v", v, f)
	if v.dropped > 0 || v.lost > v.sent/50 || f.dropped == 0 {
		t.Errorf("victims %+v, flood %+v", v, f)
	}
}

// TestSocketSharesStall: a reader that often does not run loses what the kernel drops meanwhile, and no more of
// clients that ask little. It still answers the flood in the time that it has.
func TestSocketSharesStall(t *testing.T) {
	const second = 100_000 // packets that the reader can answer when it runs
	for _, rate := range []int{second / 10, second, 10 * second} {
		s := newSimulated(1, rate)
		s.stallEvery, s.stall = 10*time.Millisecond, 30*time.Millisecond
		s.run(2 * time.Second)
		v, f := s.sum()
		t.Logf("a flood of %d: victims %+v, flood %+v", rate, v, f)
		if v.dropped > 0 {
			t.Errorf("victims %+v", v)
		}
		// It runs for a quarter of the time, and some of that goes into reading.
		possible := int((time.Second/2 - time.Duration(f.answered+f.dropped)*s.read) / s.answer)
		if f.answered < min(f.sent-f.lost, possible)/3 {
			t.Errorf("flood %+v, of which the reader can answer %d", f, possible)
		}
	}
}

// TestSocketSharesEnd: a client alone may use all that the reader can do, and after a flood the reader answers
// all again.
func TestSocketSharesEnd(t *testing.T) {
	s := newSimulated(1, 90_000)
	s.run(time.Second)
	if v, f := s.sum(); v.lost+v.dropped+f.lost+f.dropped > 0 || s.shares.active {
		t.Errorf("a client with 90 %% of what is possible: victims %+v, client %+v", v, f)
	}
	s.sources[20].interval = time.Microsecond
	s.run(1300 * time.Millisecond)
	if !s.shares.active {
		t.Error("no shares during a flood")
	}
	s.sources[20].interval = 20 * time.Microsecond
	s.run(1800 * time.Millisecond)
	if s.shares.active {
		t.Error("there are shares half a second after the flood")
	}
	s.reset()
	s.run(2300 * time.Millisecond)
	if v, f := s.sum(); v.lost+v.dropped+f.lost+f.dropped > 0 {
		t.Errorf("after the flood: victims %+v, client %+v", v, f)
	}
}

// TestSocketSharesIdle: the division ends when the reader has had nothing to read for long.
func TestSocketSharesIdle(t *testing.T) {
	s := newSimulated(1, 1_000_000)
	s.run(300 * time.Millisecond)
	if !s.shares.active {
		t.Fatal("no shares during a flood")
	}
	if s.shares.Begin(1, s.now+time.Second, s) {
		t.Error("there are shares after a second without packets")
	}
}

// TestSocketSharesBurst: a burst that fits into the queue is answered.
func TestSocketSharesBurst(t *testing.T) {
	s := newSimulated(1, 1_000_000)
	s.run(100*time.Millisecond + 2*time.Millisecond) // 2,000 packets
	s.sources[20].next = time.Hour
	s.run(time.Second)
	if v, f := s.sum(); v.lost+v.dropped+f.lost+f.dropped > 0 {
		t.Errorf("victims %+v, burst %+v", v, f)
	}
}

// TestSocketSharesGroup: addresses of one /64 outside the pods' ranges are one client.
func TestSocketSharesGroup(t *testing.T) {
	s := Shares{Pods: new(podrange.Ranges), share: 10}
	s.Pods.SetPrefixes(1, []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")})
	s.startWindow(0)
	admitted := func(text string) (n int) {
		addr := netip.MustParseAddr(text)
		for range 100 {
			a := addr.As16()
			a[15]++
			if addr = netip.AddrFrom16(a); s.Admit(addr) {
				n++
			}
		}
		return n
	}
	if n := admitted("2001:db8::"); n != 10 {
		t.Errorf("%d packets of a /64, want 10", n)
	}
	if n := admitted("2001:db8:1::"); n != 100 {
		t.Errorf("%d packets of 100 pods, want all", n)
	}
}

// TestSocketSharesAllocPin: neither the detection nor the division allocates.
func TestSocketSharesAllocPin(t *testing.T) {
	s := newSimulated(1, 1)
	s.queueLength = 1
	s.shares.startWindow(0)
	s.queue = append(s.queue, s.sources[0])
	s.now = time.Second
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}
	q := memoryReader(s)
	turn := func() {
		for range 3 * overloadBatches {
			s.now += 100 * time.Microsecond
			s.drops++
			s.shares.Begin(BatchSize, s.now, q)
			for i := range BatchSize {
				s.shares.Admit(addrs[i%2])
			}
		}
	}
	turn()
	if !s.shares.active {
		t.Fatal("no shares")
	}
	if n := testing.AllocsPerRun(20, turn); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSocketMemory: a socket tells when its queue is half full, and what it has dropped.
func TestSocketMemory(t *testing.T) {
	p, err := openLoopback(Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := p.(*blockingSocket)
	defer func() { _ = unix.Close(b.fd); b.poll.close() }()
	if err := unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10); err != nil {
		t.Fatal(err)
	}
	var m Memory
	if errno := b.Memory(&m); errno != 0 || m.halfFull() || m[meminfoRcvbuf] != 128<<10 || m[meminfoDrops] != 0 {
		t.Fatalf("an empty queue: %v, errno %v", m, errno)
	}
	client := dialSocket(t, p)
	for range 2000 { // which is more than fits
		_, _ = client.Write([]byte("packet"))
	}
	if errno := b.Memory(&m); errno != 0 || !m.halfFull() || m[meminfoDrops] < 1000 {
		t.Errorf("a full queue: %v, errno %v", m, errno)
	}
}
