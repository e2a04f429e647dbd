package server

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it waits for a reader to use the poller.

// rawClient asks one question with system calls that the scheduler does not see, so that the client makes no
// thread poll the network.
type rawClient struct {
	t     *testing.T
	fd    int
	query []byte
}

func newRawClient(t *testing.T, to syscall.Sockaddr) *rawClient {
	t.Helper()
	fd, err := syscall.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	tv := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	query, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return &rawClient{t, fd, query}
}

// ask asks once and waits for the reply.
func (c *rawClient) ask() {
	c.t.Helper()
	var reply [512]byte
	if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&c.query[0])), uintptr(len(c.query))); errno != 0 {
		c.t.Fatal(errno)
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&reply[0])), uintptr(len(reply)))
		switch errno {
		case 0:
			return
		case unix.EINTR:
		default:
			c.t.Fatal(errno)
		}
	}
}

// sleep blocks the thread for d.
func (c *rawClient) sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// TestPollingThreadReplaced: when a reader goes from the poller into the kernel, another thread polls the network: a
// goroutine that waits there is resumed before the reader has answered many more queries.
func TestPollingThreadReplaced(t *testing.T) {
	const (
		trials = 40
		// pause is the time between two queries. Without a replacement the goroutine is resumed after some 10 ms.
		pause = 500 * time.Microsecond
		few   = 5
		// rest is more than the time after which a reader without packets waits on the poller.
		rest = 20 * time.Millisecond
	)
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 by.hand")}
	s, addr := startReaders(t, Limits{Readers: 1}, false, z)
	c := newRawClient(t, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var resumed atomic.Int64
	go func() {
		defer r.Close()
		for b := make([]byte, 1); ; resumed.Add(1) {
			if _, err := r.Read(b); err != nil {
				return
			}
		}
	}()
	socket := s.listeners[ListenAddr{AddrPort: addr}].udp[0]
	late := 0
	for trial := range int64(trials) {
		awaitPolling(t, socket)
		c.sleep(rest) // the first query comes after a long gap, the second after a short one
		c.ask()
		c.ask()
		b := []byte{0}
		if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, w.Fd(), uintptr(unsafe.Pointer(&b[0])), 1); errno != 0 {
			t.Fatal(errno)
		}
		answered := 0
		for ; resumed.Load() == trial; answered++ {
			c.sleep(pause)
			c.ask()
		}
		if answered > few {
			late++
		}
	}
	if late > trials/20 {
		t.Errorf("in %d of %d trials, the reader answered more than %d queries while the goroutine waited", late, trials, few)
	}
}
