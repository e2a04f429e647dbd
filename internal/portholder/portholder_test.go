package portholder_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/portholder"
)

// holdVariable makes this test program listen at its value and wait for the end of its standard input.
const holdVariable = "PORTHOLDER_TEST_HOLD"

func TestMain(m *testing.M) {
	if at := os.Getenv(holdVariable); at != "" {
		network, addr, _ := strings.Cut(at, " ")
		_, socket, err := listen(network, addr)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		defer socket.Close()
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		return
	}
	os.Exit(m.Run())
}

// listen listens with SO_REUSEPORT until the socket is closed, which the garbage collector does with one that nobody has.
func listen(network, addr string) (at net.Addr, socket io.Closer, err error) {
	c := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, failed)
	}}
	if strings.HasPrefix(network, "udp") {
		p, err := c.ListenPacket(context.Background(), network, addr)
		if err != nil {
			return nil, nil, err
		}
		return p.LocalAddr(), p, nil
	}
	l, err := c.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, nil, err
	}
	return l.Addr(), l, nil
}

// hold starts a process that listens at addr until the test ends.
func hold(t *testing.T, network, addr string) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdVariable+"="+network+" "+addr)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process says %q", line)
	}
	return cmd.Process.Pid
}

// TestFind: another process at the same address is found, and none of this process, at another address, or at
// another port.
func TestFind(t *testing.T) {
	for _, c := range []struct{ name, network, own, other string }{
		{"UDP", "udp4", "127.0.0.1", "127.0.0.1"},
		{"TCP", "tcp4", "127.0.0.1", "127.0.0.1"},
		{"UDP over IPv6", "udp6", "::1", "::1"},
		{"TCP over IPv6", "tcp6", "::1", "::1"},
		{"all addresses", "udp4", "0.0.0.0", "0.0.0.0"},
		{"all addresses, TCP", "tcp", "::", "::"},
		{"another address", "udp4", "127.0.0.1", "127.0.0.2"},
		{"all addresses beside one", "udp4", "127.0.0.1", "0.0.0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, socket, err := listen(c.network, net.JoinHostPort(c.own, "0"))
			if err != nil {
				t.Skip(err) // no IPv6
			}
			defer socket.Close()
			at := netip.MustParseAddrPort(a.String())
			ports := []portholder.Port{{UDP: strings.HasPrefix(c.network, "udp"), AddrPort: at}}
			var f portholder.Finder
			if list, err := f.Find(ports); len(list) != 0 || err != nil {
				t.Fatalf("alone: %v, %v", list, err)
			}
			if n, err := f.Count(ports[0]); n != 0 || err != nil {
				t.Errorf("alone: %d sockets of others, %v", n, err)
			}
			pid := hold(t, c.network, net.JoinHostPort(c.other, fmt.Sprint(at.Port())))
			list, err := f.Find(ports)
			if err != nil {
				t.Fatal(err)
			}
			if c.own != c.other {
				if len(list) != 0 {
					t.Errorf("found %v", list)
				}
				return
			}
			if len(list) != 1 || list[0].PID != pid || list[0].Name == "" || list[0].UID != os.Getuid() || !slices.Equal(list[0].Ports, ports) {
				t.Errorf("found %+v, want the process %d at %v", list, pid, ports)
			}
			if n, err := f.Count(ports[0]); n != 1 || err != nil {
				t.Errorf("%d sockets of others, %v; want 1", n, err)
			}
			ports[0].UDP = !ports[0].UDP
			if list, err := f.Find(ports); len(list) != 0 || err != nil {
				t.Errorf("the other transport: %v, %v", list, err)
			}
		})
	}
}

// TestHidden: a process that can't be named is not hidden from the operator.
func TestHidden(t *testing.T) {
	h := portholder.Holder{UID: 7}
	if text := h.String(); !strings.Contains(text, "user 7") || !strings.Contains(text, "ss -lntup") {
		t.Error(text)
	}
}
