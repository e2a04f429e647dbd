// These tests use openUDPSockets and newListener, which are not exported: they run on a thread whose kernel looks different.

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/server/udp"
)

// onThread runs f on a thread of its own, which ends with f, after set has changed the thread.
func onThread(t *testing.T, set func() error, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it
		err := set()
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skip("needs root")
	} else if err != nil {
		t.Fatal(err)
	}
}

// withoutIPv6 makes socket(2) fail on this thread as a kernel without IPv6 does.
func withoutIPv6() error {
	const (
		load, equal, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		number, domain      = 0, 16 // offsets in struct seccomp_data
		fail, allow         = 0x00050000, 0x7fff0000
	)
	program := []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
		{Code: load, K: domain},
		{Code: equal, K: unix.AF_INET6, Jf: 1},
		{Code: answer, K: fail | uint32(unix.EAFNOSUPPORT)},
		{Code: answer, K: allow},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}

// TestNoIPv6: without IPv6 in the kernel, all addresses are all IPv4 addresses, and another IPv6 address is a clear
// error.
func TestNoIPv6(t *testing.T) {
	all := netip.MustParseAddrPort("[::]:0")
	if got := socket.BindAddr(all); got != all {
		t.Skipf("this machine has no IPv6: %v", got)
	}
	onThread(t, withoutIPv6, func() {
		at := socket.BindAddr(all)
		if want := netip.MustParseAddrPort("0.0.0.0:0"); at != want {
			t.Errorf("%v, want %v", at, want)
		}
		sockets, err := udp.Open(at, udp.Options{Readers: 1}, func() (int, error) { return -1, nil })
		if err != nil {
			t.Error(err)
		}
		udp.CloseAll(sockets)
		one := netip.MustParseAddrPort("[::1]:0")
		if got := socket.BindAddr(one); got != one {
			t.Errorf("%v, want %v", got, one)
		}
		if _, err := socket.OpenUDP(one); err == nil || !strings.Contains(err.Error(), "the kernel has no IPv6 (ipv6.disable=1); take ::1 out of --localip or bind") {
			t.Errorf("%v", err)
		}
	})
}

// TestTentativeAddress: an address that the kernel has not checked yet is waited for.
func TestTentativeAddress(t *testing.T) {
	run := func(args ...string) {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	onThread(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() {
		run("link", "add", "v0", "type", "veth", "peer", "name", "v1")
		run("link", "set", "v0", "up")
		run("link", "set", "v1", "up")
		run("addr", "add", "fd00::1/64", "dev", "v0")
		at := netip.MustParseAddrPort("[fd00::1]:5353")
		if _, err := socket.OpenUDP(at); err == nil || !strings.Contains(err.Error(), "duplicate address detection") {
			t.Errorf("at once: %v", err)
		}
		s := New(slog.New(slog.DiscardHandler), Limits{Readers: 1})
		l, err := newListener(s, ListenAddr{AddrPort: at}, &ListenerConfig{})
		if err != nil {
			t.Error(fmt.Errorf("after waiting: %w", err))
			return
		}
		l.close()
	})
}
