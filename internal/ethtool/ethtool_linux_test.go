// Inside the package for interfaceTo: no driver in a test has a counter of dropped packets.

package ethtool

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace calls f in a new network namespace with the interfaces nodens-a, which has the address 192.0.2.1/24, and its peer
// nodens-b.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			for _, args := range [][]string{
				{"link", "add", "nodens-a", "type", "veth", "peer", "name", "nodens-b"},
				{"address", "add", "192.0.2.1/24", "dev", "nodens-a"}, {"link", "set", "nodens-a", "up"}, {"link", "set", "lo", "up"},
			} {
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					return errors.New(string(out))
				}
			}
			f(t)
			return nil
		}()
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skip("needs root for a network namespace")
	} else if err != nil {
		t.Fatal(err)
	}
}

// TestCounter reads a counter that the driver veth has, and looks for others.
func TestCounter(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		peer, err := net.InterfaceByName("nodens-b")
		if err != nil {
			t.Error(err)
			return
		}
		if n, err := Counter("nodens-a", "peer_ifindex"); err != nil || n != uint64(peer.Index) {
			t.Errorf("peer_ifindex is %d, %v; want %d", n, err, peer.Index)
		}
		if _, err := Counter("nodens-a", "peer"); !errors.Is(err, ErrNoCounter) {
			t.Errorf("the start of a counter's name: %v, want ErrNoCounter", err)
		}
		if _, err := Counter("absent", "peer_ifindex"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("no such interface: %v, want ENODEV", err)
		}
		if _, err := Counter("lo", "peer_ifindex"); err == nil {
			t.Error("the loopback interface has a counter")
		}
		if _, err := Counter("a-name-that-is-too-long", "peer_ifindex"); err == nil {
			t.Error("an interface with an impossible name has a counter")
		}
	})
}

// TestDrops: the interface is that of the route, and the error says which one has no counter.
func TestDrops(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		to := netip.MustParseAddr("192.0.2.53")
		if name, err := interfaceTo(to); err != nil || name != "nodens-a" {
			t.Errorf("the interface to %s is %q, %v; want nodens-a", to, name, err)
		}
		if _, err := Drops(to); !errors.Is(err, ErrNoCounter) {
			t.Errorf("an interface without the counter: %v, want ErrNoCounter", err)
		}
		if _, err := Drops(netip.MustParseAddr("203.0.113.1")); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("an address without a route: %v, want ENETUNREACH", err)
		}
	})
}
