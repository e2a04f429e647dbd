// These tests use portLocks, which is not exported.

package peer

import (
	"net"
	"path/filepath"
	"testing"
)

// TestPortLocks: a port belongs to one process, until that ends. Two open files stand for processes.
func TestPortLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *portLocks {
		l, err := openPortLocks(path)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	one, other := open(), open()
	if !one.take(1000) || !other.take(1001) {
		t.Fatal("a port that nobody has is not given")
	}
	if one.take(1000) || one.take(1001) || other.take(1000) {
		t.Error("a port is given twice")
	}
	one.file.Close()
	if !other.take(1000) {
		t.Error("a port stays taken after its process has ended")
	}
}

// TestPorts: each port is another one, and free.
func TestPorts(t *testing.T) {
	seen := make(map[uint16]bool)
	for _, p := range Ports(t, 500) {
		if seen[p] || p < firstPort || p >= lastPort {
			t.Errorf("port %d: picked twice or out of range", p)
		}
		seen[p] = true
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if port := l.Addr().(*net.TCPAddr).AddrPort().Port(); free(port) {
		t.Errorf("port %d is in use but counts as free", port)
	}
}
