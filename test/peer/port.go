package peer

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// Port picks from a range below the kernel's ephemeral ports (32768 and up), so that no
// outgoing connection takes a port before its server does, and above the well-known ports.
const (
	firstPort = 12000
	lastPort  = 32000
)

// portLocks are ports that belong to this process until it ends: packages are tested at the same time,
// and a server may take seconds until it listens. They are byte ranges of a file, at the ports' offsets,
// whose locks the kernel releases.
type portLocks struct {
	file *os.File

	mu    sync.Mutex
	taken map[uint16]struct{} // by this process
}

func openPortLocks(path string) (*portLocks, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return &portLocks{file: file, taken: make(map[uint16]struct{})}, nil
}

// take reports whether the port belongs to this process from now on.
func (l *portLocks) take(port uint16) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.taken[port]; taken {
		return false
	}
	at := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1}
	if unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &at) != nil {
		return false
	}
	l.taken[port] = struct{}{}
	return true
}

// ownPorts are the ports of this process.
var ownPorts = sync.OnceValues(func() (*portLocks, error) {
	cache, err := toolcache.Open()
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(cache.Dir(), "ports")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	return openPortLocks(filepath.Join(folder, "lock"))
})

// Port returns a port that is free for UDP and TCP on all addresses at the moment. No other call returns
// it while this process lives, in any process of this user.
func Port() (uint16, error) {
	locks, err := ownPorts()
	if err != nil {
		return 0, fmt.Errorf("reserving a port: %w", err)
	}
	for range 1000 {
		port := uint16(firstPort + rand.IntN(lastPort-firstPort))
		if locks.take(port) && free(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// free reports whether UDP and TCP sockets can be bound to the port on the wildcard address.
func free(port uint16) bool {
	addr := net.JoinHostPort("", fmt.Sprint(port))
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	udp.Close()
	return true
}

// Ports returns n different ports as [Port] does, and fails the test if it finds none.
func Ports(tb testing.TB, n int) []uint16 {
	tb.Helper()
	ports := make([]uint16, n)
	for i := range ports {
		var err error
		if ports[i], err = Port(); err != nil {
			tb.Fatal(err)
		}
	}
	return ports
}
