// These tests use delays, sample and last, which are not exported.

package udp

import (
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/stat"
)

// Inside the package: the sampler is not exported.

// openLoopback opens one port on a free port number.
func openLoopback(o Options) (Socket, error) {
	addr := netip.AddrPortFrom(loopback, 0)
	fd, err := socket.OpenUDP(addr)
	if err != nil {
		return nil, err
	}
	return newSocket(fd, addr, o)
}

// queueTime is for how long packets wait in a test: it lies between two bounds.
const queueTime = 25 * time.Millisecond

// TestSocketTimestamp lets packets wait in a socket whose reader is busy: that they have waited, and
// for how long at least, must be in the sample.
func TestSocketTimestamp(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			p, err := openLoopback(w.Options)
			if err != nil {
				t.Fatal(err)
			}
			b := NewBatch()
			client := dialSocket(t, p)
			defer func() { // as a server does
				p.Close()
				for p.ReadBatch(b) {
				}
			}()
			send := func(n int) {
				for range n {
					if _, err := client.Write([]byte("packet")); err != nil {
						t.Fatal(err)
					}
				}
			}
			q := DelaySampler{Delays: stat.NewHistogram(DelayBuckets)}
			for q.Delays.Read().Count == 0 { // until the kernel stamps what comes
				send(1)
				p.ReadBatch(b)
				q.Sample(p, 1, q.last+singleInterval)
				if q.off {
					t.Fatal("the kernel doesn't say when packets came")
				}
				runtime.Gosched()
			}
			before := q.Delays.Read()
			const samples = 2
			// A look that the scheduler comes between is no sample.
			for tries := 0; q.Delays.Read().Count < before.Count+samples; tries++ {
				if tries == 100 {
					t.Fatalf("%d samples became %d", before.Count, q.Delays.Read().Count)
				}
				send(BatchSize)
				time.Sleep(queueTime)
				p.ReadBatch(b)
				q.Sample(p, BatchSize, q.last+sampleInterval)
				for b.N < BatchSize && !queueEmpty(t, p) { // what comes one at a time
					p.ReadBatch(b)
				}
			}
			if quick := q.Delays.Read().Buckets[20e-3] - before.Buckets[20e-3]; quick > 0 {
				t.Errorf("%d of %d packets that waited %v are in the bucket of 20 ms", quick, samples, queueTime)
			}
		})
	}
}

// dialSocket is a client of p.
func dialSocket(t *testing.T, p Socket) net.Conn {
	t.Helper()
	var at netip.AddrPort
	switch p := p.(type) {
	case *polledSocket:
		at = p.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	case *blockingSocket:
		sa, err := unix.Getsockname(p.fd)
		if err != nil {
			t.Fatal(err)
		}
		at = netip.AddrPortFrom(loopback, uint16(sa.(*unix.SockaddrInet4).Port))
	}
	conn, err := net.Dial("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// queueEmpty reports whether nothing waits in p.
func queueEmpty(t *testing.T, p Socket) bool {
	t.Helper()
	var n int
	var err error
	look := func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }
	switch p := p.(type) {
	case *polledSocket:
		raw, fault := p.conn.SyscallConn()
		if fault != nil {
			t.Fatal(fault)
		}
		_ = raw.Control(look)
	case *blockingSocket:
		look(uintptr(p.fd))
	}
	if err != nil {
		t.Fatal(err)
	}
	return n == 0
}

// fakeStamps is a port that says when packets came.
type fakeStamps struct {
	Socket
	came  func() time.Time
	errno syscall.Errno
	asked int
}

func (p *fakeStamps) Timestamp(came *unix.Timespec) syscall.Errno {
	p.asked++
	*came = unix.NsecToTimespec(p.came().UnixNano())
	return p.errno
}

// TestDelaySampler: what is no sample isn't one, and looks are as far apart as they should be.
func TestDelaySampler(t *testing.T) {
	p := &fakeStamps{came: func() time.Time { return time.Now().Add(-time.Second) }}
	q := DelaySampler{Delays: stat.NewHistogram(DelayBuckets)}
	now := clock.Now()
	count := func() uint64 {
		now += sampleInterval
		q.Sample(p, 2, now)
		return q.Delays.Read().Count
	}
	if n := count(); n != 0 {
		t.Errorf("the first look, with nothing to compare the clocks with, is %d samples", n)
	}
	if n := count(); n != 1 {
		t.Errorf("the second look is %d samples, want 1", n)
	}
	q.Sample(p, 2, now+sampleInterval-1)
	q.Sample(p, 1, now+singleInterval-1)
	if p.asked != 2 {
		t.Errorf("asked %d times within %v, and %v for one packet", p.asked, sampleInterval, singleInterval)
	}
	if s := q.Delays.Read(); s.Buckets[0.5] != 0 || s.Buckets[2] != 1 {
		t.Errorf("a second is in the wrong bucket: %v", s.Buckets)
	}
	for i, step := range []struct {
		ahead  time.Duration
		steady bool
	}{{0, true}, {50 * time.Microsecond, true}, {time.Hour, false}, {time.Hour, true}, {-time.Hour, false}, {-time.Hour, true}, {0, false}} {
		if got := q.checkDrift(step.ahead); got != step.steady {
			t.Errorf("step %d, the wall clock %v ahead: steady %v", i, step.ahead, got)
		}
	}
	now += singleInterval
	if q.Sample(p, 1, now); p.asked != 3 {
		t.Errorf("not asked about one packet after %v", singleInterval)
	}
	p.errno = unix.ENOENT
	if n := count(); n != 2 || q.off {
		t.Errorf("nothing read yet: %d samples, off %v", n, q.off)
	}
	p.errno = 0
	count()
	p.came = func() time.Time { return time.Now().Add(time.Hour) }
	before := q.Delays.Read().Count
	if n := count(); n != before {
		t.Error("a packet of the future is a sample")
	}
	p.errno = unix.ENOTTY
	if count(); !q.off {
		t.Error("a kernel that doesn't say is asked again")
	}
	asked := p.asked
	if count(); p.asked != asked {
		t.Error("it is asked again")
	}
}

// BenchmarkDelaySample is what a reader pays for a look at the queue: off is what each batch
// pays, on what one with a sample does.
func BenchmarkDelaySample(b *testing.B) {
	p, err := openLoopback(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	q := DelaySampler{Delays: stat.NewHistogram(DelayBuckets)}
	b.Run("off", func(b *testing.B) {
		q.last = time.Hour
		for b.Loop() {
			q.Sample(p, 1, 0)
		}
	})
	b.Run("on", func(b *testing.B) {
		for b.Loop() {
			q.Sample(p, 1, q.last+singleInterval)
		}
	})
}
