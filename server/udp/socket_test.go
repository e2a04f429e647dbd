// These tests use readBatch, udpSocket and batchSize, which are not exported.

package udp

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// Inside the package: sockets are not exported.

// burstSize is how many packets come while late replies are sent: with a socket that joined
// the others in front every two hundredth of those that come while one is closed would be
// lost. A tenth of it might not meet with one, ten times as many would take seconds.
const burstSize = 5000

// TestSendAfterClose: a port that is shut sends a reply from its address, and whoever reads
// there by then loses nothing by it.
func TestSendAfterClose(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		for _, w := range readerKinds {
			t.Run(host+", "+w.name, func(t *testing.T) {
				addr := netip.AddrPortFrom(netip.MustParseAddr(host), peer.Ports(t, 1)[0])
				p := openAt(t, addr, w.Options)
				client := dialUDP(t, addr)
				if _, err := client.Write([]byte("?")); err != nil {
					t.Fatal(err)
				}
				b := NewBatch()
				if !p.ReadBatch(b) {
					t.Fatal("the port gives no packet")
				}
				from := b.Packets[0].From
				others := []Socket{openAt(t, addr, w.Options), openAt(t, addr, w.Options)}
				p.Close()
				if p.ReadBatch(b) {
					t.Fatal("the port is shut and gives a packet")
				}
				p.Send(&from, []byte("!"))
				if n, err := client.Read(make([]byte, 2)); n != 1 || err != nil {
					t.Fatalf("%d bytes came back, %v", n, err)
				}
				Balance(others, 0)
				checkNoLoss(t, addr, others, func() { p.Send(&from, []byte("!")) })
			})
		}
	}
}

func openAt(t *testing.T, addr netip.AddrPort, o Options) Socket {
	t.Helper()
	p, err := openOne(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// dialUDP is a client of addr, which hears nothing but what comes from there.
func dialUDP(t *testing.T, addr netip.AddrPort) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// checkNoLoss checks that ports, which are those of addr, get each packet of a burst while
// disturb is called again and again.
func checkNoLoss(t *testing.T, addr netip.AddrPort, ports []Socket, disturb func()) {
	t.Helper()
	var all sync.WaitGroup
	var got atomic.Uint64
	for _, p := range ports {
		all.Go(func() {
			for b := NewBatch(); p.ReadBatch(b); {
				got.Add(uint64(b.N))
			}
		})
	}
	var over atomic.Bool
	all.Go(func() {
		for !over.Load() {
			disturb()
		}
	})
	defer all.Wait()
	defer CloseAll(ports)
	defer over.Store(true)
	client := dialUDP(t, addr)
	for sent := range uint64(burstSize) {
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if sent%BatchSize == 0 { // no more than their queues hold
			eventually(t, "the packets to be read", func() bool { return got.Load()+64*BatchSize > sent })
		}
	}
	eventually(t, "each packet to be read", func() bool { return got.Load() == burstSize })
}

// expectedReply is a socket of an upstream on which one reply is expected.
type expectedReply struct {
	set  *pollset.Set
	fds  [2]int
	read chan struct{}
}

// newExpectedReply adds one to the set.
func newExpectedReply(t *testing.T, set *pollset.Set) *expectedReply {
	t.Helper()
	e := &expectedReply{set: set, read: make(chan struct{})}
	var err error
	e.fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check.NoError(t, err)
	t.Cleanup(func() {
		_ = unix.Close(e.fds[0])
		_ = unix.Close(e.fds[1])
	})
	set.Add(e)
	set.Expect(1)
	return e
}

// send is what the upstream does.
func (e *expectedReply) send(t *testing.T) {
	t.Helper()
	_, err := unix.Write(e.fds[1], []byte{1})
	check.NoError(t, err)
}

func (e *expectedReply) FD() int { return e.fds[0] }

func (e *expectedReply) ReadReplies() func() {
	var b [1]byte
	if n, err := unix.Read(e.fds[0], b[:]); n == 1 && err == nil {
		e.set.Remove(e)
		e.set.Expect(-1)
		close(e.read)
	}
	return nil
}

// TestUpstreams: a reader that waits for packets also reads an expected reply, whether packets are rare or not. After
// the reader has ended, the reply is still read.
func TestUpstreams(t *testing.T) {
	for _, end := range []string{"", "suspended", "closed"} {
		for _, lowRate := range []bool{false, true} {
			addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), peer.Ports(t, 1)[0])
			p := openAt(t, addr, Options{}).(*blockingSocket)
			p.lowRate = lowRate
			e := newExpectedReply(t, p.Upstreams())
			client := dialUDP(t, addr)
			replied, packets := make(chan struct{}), make(chan struct{})
			var once, first sync.Once
			go func() {
				b := NewBatch()
				for p.ReadBatch(b) {
					if b.Replied {
						once.Do(func() { close(replied) })
					}
					if b.N > 0 {
						first.Do(func() { close(packets) })
					}
				}
				if end != "" {
					close(replied)
				}
			}()
			if _, err := client.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			<-packets
			switch end {
			case "suspended":
				p.Suspend()
				<-replied
			case "closed":
				p.Close()
				<-replied
			}
			e.send(t)
			<-e.read
			if end == "" {
				<-replied
			}
		}
	}
}

// TestNoWait: a reader that has something else to do does not wait, and gets a packet, or an expected reply, that is there.
func TestNoWait(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), peer.Ports(t, 1)[0])
			p := openAt(t, addr, w.Options)
			b := NewBatch()
			b.NoWait = true
			client := dialUDP(t, addr)
			for range 3 { // the first one would wait for ever
				check.Equal(t, true, p.ReadBatch(b), "the socket is open")
				check.Equal(t, 0, b.N, "packets that nobody has sent")
			}
			if _, err := client.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			b.NoWait = p.Upstreams() != nil // others look for packets only when they wait
			eventually(t, "the packet to be read", func() bool { return p.ReadBatch(b) && b.N == 1 })
			if p.Upstreams() == nil {
				return
			}
			e := newExpectedReply(t, p.Upstreams())
			check.Equal(t, true, p.ReadBatch(b) && b.N == 0 && !b.Replied, "nothing has come")
			e.send(t)
			eventually(t, "the reply to be read", func() bool { return p.ReadBatch(b) && b.Replied })
		})
	}
}
