// These tests use withFD, which is not exported.

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/test/soak"
)

// Inside the package: it shares helpers with the tests of sockets.

// childMessage is one message between a test and the server in its second process. A file that
// goes along is a socket or a connection.
type childMessage struct {
	// Do is what the other side has to do, or that it is done.
	Do   string
	Addr netip.AddrPort `json:",omitzero"`
	UDP  bool           `json:",omitzero"`
	Read []byte         `json:",omitzero"`
	Err  string         `json:",omitzero"`
}

// childConn is how notes go, in order and whole.
type childConn struct{ *net.UnixConn }

func newChildConn(f *os.File) (childConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return childConn{}, err
	}
	return childConn{c.(*net.UnixConn)}, nil
}

// write sends n with the descriptor of c, if there is one.
func (l childConn) write(n childMessage, c *os.File) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if c == nil {
		_, _, err = l.WriteMsgUnix(text, nil, nil)
		return err
	}
	return socket.WithFD(c, func(fd int) error {
		_, _, err := l.WriteMsgUnix(text, unix.UnixRights(fd), nil)
		return err
	})
}

func (l childConn) read() (n childMessage, f *os.File, err error) {
	text, rights := make([]byte, 1<<17), make([]byte, unix.CmsgSpace(4))
	_ = l.SetReadDeadline(time.Now().Add(patience))
	size, oobn, _, _, err := l.ReadMsgUnix(text, rights)
	if err != nil {
		return n, nil, err
	}
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(rights[:oobn])
		if err != nil {
			return n, nil, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return n, nil, err
		}
		unix.CloseOnExec(fds[0])
		f = os.NewFile(uintptr(fds[0]), "handed down")
	}
	return n, f, json.Unmarshal(text[:size], &n)
}

// transfer sends a connection.
func (l childConn) transfer(at netip.AddrPort, conn *net.TCPConn, read []byte) error {
	f, err := socket.Duplicate(conn)
	if err != nil {
		return err
	}
	defer f.Close()
	return l.write(childMessage{Do: "admit", Addr: at, Read: read}, f)
}

// adopt serves a connection that came along with n.
func (n childMessage) adopt(s *Server, f *os.File) error {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	if !s.AdoptConn(n.Addr, c.(*net.TCPConn), n.Read) {
		return errors.New("not admitted")
	}
	return nil
}

// serveUntilDone admits the connections that come until the other side is done.
func (l childConn) serveUntilDone(s *Server) error {
	for {
		n, f, err := l.read()
		if err == nil && n.Do == "admit" {
			err = n.adopt(s, f)
		}
		switch {
		case err != nil:
			return err
		case n.Err != "":
			return errors.New(n.Err)
		case n.Do == "done":
			return nil
		}
	}
}

const (
	childMode = "NODENS_TEST_SERVER" // how the child's readers wait
	childSlow = "NODENS_TEST_SLOW"   // the address of its upstream
)

// TestProcessChild is the second process of TestProcess.
func TestProcessChild(t *testing.T) {
	mode := os.Getenv(childMode)
	if mode == "" {
		t.Skip("is run by TestProcess")
	}
	l, err := newChildConn(os.NewFile(3, "line"))
	if err != nil {
		t.Fatal(err)
	}
	z := slowZoneAt(t, netip.MustParseAddrPort(os.Getenv(childSlow)))
	s := New(slog.New(slog.DiscardHandler), Limits{Readers: 2, Poller: mode == "polled"})
	for {
		n, f, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		switch n.Do {
		case "adopt":
			s.SetInherited([]SocketFile{{Addr: n.Addr, UDP: n.UDP, File: f}})
			continue
		case "admit":
			err = n.adopt(s, f)
			if err == nil {
				continue
			}
		case "listen":
			err = s.Listen(plainConfig(n.Addr, z))
		case "yield":
			err = s.Suspend(t.Context(), l.transfer)
		case "resume":
			s.Resume()
		case "end":
			shutdown(t, s)
		}
		answer := childMessage{Do: "done"}
		if err != nil {
			answer.Err = err.Error()
		}
		if err := l.write(answer, nil); err != nil || n.Do == "end" {
			return
		}
	}
}

// startChild starts the second process, with what s listens with.
func startChild(t *testing.T, s *Server, mode string, upstream netip.AddrPort) (l childConn, kill func()) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	far := os.NewFile(uintptr(pair[1]), "line")
	defer far.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcessChild$")
	// It is killed, and leaves its temporary files.
	cmd.Env = append(os.Environ(), childMode+"="+mode, childSlow+"="+upstream.String(), "TMPDIR="+t.TempDir())
	cmd.ExtraFiles = []*os.File{far}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, os.Stderr
	if l, err = newChildConn(os.NewFile(uintptr(pair[0]), "line")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = l.Close()
		if t.Failed() {
			t.Logf("the second process has said:\n%s", said.Bytes())
		}
	})
	t.Cleanup(kill)
	handles, err := s.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	var addr netip.AddrPort
	for _, h := range handles {
		addr = h.Addr
		if err := l.write(childMessage{Do: "adopt", Addr: h.Addr, UDP: h.UDP}, h.File); err != nil {
			t.Fatal(err)
		}
		_ = h.File.Close()
	}
	l.call(t, childMessage{Do: "listen", Addr: addr}, s)
	return l, kill
}

// call has the other side do what n says, and s serve the connections that come back.
func (l childConn) call(t *testing.T, n childMessage, s *Server) {
	t.Helper()
	err := l.write(n, nil)
	if err == nil {
		err = l.serveUntilDone(s)
	}
	if err != nil {
		t.Fatalf("the second process, %s: %v", n.Do, err)
	}
}

// TestProcess: two processes give way to each other under load, fifty times, and each
// query is answered once, over connections that last. Then one is killed.
func TestProcess(t *testing.T) {
	if os.Getenv(childMode) != "" {
		t.Skip("this is the second process")
	}
	for _, w := range []struct {
		here, there string
		turns       int
	}{
		{"blocking", "blocking", soak.Choose(5, 25)}, {"blocking", "polled", soak.Choose(2, 5)}, {"polled", "blocking", soak.Choose(2, 5)}, {"polled", "polled", soak.Choose(2, 5)},
	} {
		t.Run(w.here+", "+w.there, func(t *testing.T) {
			upstream := slowUpstream(t)
			s, addr := startReaders(t, Limits{Readers: 2, Poller: w.here == "polled"}, false, slowZoneAt(t, upstream))
			l, _ := startChild(t, s, w.there, upstream)
			f := startFlood(t, addr, 4, 2)
			for turn := range w.turns {
				awaitCount(t, f.answered.Load, 200)
				if err := s.Suspend(t.Context(), l.transfer); err != nil {
					t.Fatalf("turn %d: %v", turn, err)
				}
				if n := openConns(s); n != 0 {
					t.Errorf("turn %d: %d connections have stayed", turn, n)
				}
				awaitCount(t, f.answered.Load, 200)
				s.Resume()
				l.call(t, childMessage{Do: "yield"}, s)
				if n := openConns(s); n != 2 {
					t.Errorf("turn %d: %d connections have come back, want 2", turn, n)
				}
				awaitCount(t, f.answered.Load, 200)
				l.call(t, childMessage{Do: "resume"}, s)
				if list := socketsAt(t, addr); len(list) != 5 {
					t.Errorf("turn %d: sockets %q, want two for packets, a listener and two connections", turn, list)
				}
			}
			l.call(t, childMessage{Do: "end"}, s)
			awaitCount(t, f.answered.Load, 200)
			f.stopAndCheck()

			l, kill := startChild(t, s, w.there, upstream)
			if err := s.Suspend(t.Context(), l.transfer); err != nil {
				t.Fatal(err)
			}
			checkServes(t, addr)
			kill()
			s.Resume()
			checkServes(t, addr)
			f = startFlood(t, addr, 2, 1)
			awaitCount(t, f.answered.Load, 200)
			f.stopAndCheck()
		})
	}
}
