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
)

// note is one message between a test and the server in its second process. A file that
// goes along is a socket or a connection.
type note struct {
	// Do is what the other side has to do, or that it is done.
	Do   string
	Addr netip.AddrPort `json:",omitzero"`
	UDP  bool           `json:",omitzero"`
	Read []byte         `json:",omitzero"`
	Err  string         `json:",omitzero"`
}

// line is how notes go, in order and whole.
type line struct{ *net.UnixConn }

func newLine(f *os.File) (line, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return line{}, err
	}
	return line{c.(*net.UnixConn)}, nil
}

// write sends n with the descriptor of c, if there is one.
func (l line) write(n note, c *os.File) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if c == nil {
		_, _, err = l.WriteMsgUnix(text, nil, nil)
		return err
	}
	return withFD(c, func(fd int) error {
		_, _, err := l.WriteMsgUnix(text, unix.UnixRights(fd), nil)
		return err
	})
}

func (l line) read() (n note, f *os.File, err error) {
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

// pass sends a connection.
func (l line) pass(at netip.AddrPort, conn *net.TCPConn, read []byte) error {
	f, err := Duplicate(conn)
	if err != nil {
		return err
	}
	defer f.Close()
	return l.write(note{Do: "admit", Addr: at, Read: read}, f)
}

// admit serves a connection that came along with n.
func (n note) admit(s *Server, f *os.File) error {
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

// take admits the connections that come until the other side is done.
func (l line) take(s *Server) error {
	for {
		n, f, err := l.read()
		if err == nil && n.Do == "admit" {
			err = n.admit(s, f)
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
	l, err := newLine(os.NewFile(3, "line"))
	if err != nil {
		t.Fatal(err)
	}
	z := slowlyOf(t, netip.MustParseAddrPort(os.Getenv(childSlow)))
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
			err = n.admit(s, f)
			if err == nil {
				continue
			}
		case "listen":
			err = s.Listen(over(n.Addr, z))
		case "yield":
			err = s.Suspend(t.Context(), l.pass)
		case "resume":
			s.Resume()
		case "end":
			shutdown(t, s)
		}
		answer := note{Do: "done"}
		if err != nil {
			answer.Err = err.Error()
		}
		if err := l.write(answer, nil); err != nil || n.Do == "end" {
			return
		}
	}
}

// child starts the second process, with what s listens with.
func child(t *testing.T, s *Server, mode string, upstream netip.AddrPort) (l line, kill func()) {
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
	if l, err = newLine(os.NewFile(uintptr(pair[0]), "line")); err != nil {
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
		if err := l.write(note{Do: "adopt", Addr: h.Addr, UDP: h.UDP}, h.File); err != nil {
			t.Fatal(err)
		}
		_ = h.File.Close()
	}
	l.do(t, note{Do: "listen", Addr: addr}, s)
	return l, kill
}

// do has the other side do what n says, and s serve the connections that come back.
func (l line) do(t *testing.T, n note, s *Server) {
	t.Helper()
	err := l.write(n, nil)
	if err == nil {
		err = l.take(s)
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
		{"blocking", "blocking", 25}, {"blocking", "polled", 5}, {"polled", "blocking", 5}, {"polled", "polled", 5},
	} {
		t.Run(w.here+", "+w.there, func(t *testing.T) {
			upstream := slow(t)
			s, addr := startWith(t, Limits{Readers: 2, Poller: w.here == "polled"}, false, slowlyOf(t, upstream))
			l, _ := child(t, s, w.there, upstream)
			f := startFlood(t, addr, 4, 2)
			for turn := range w.turns {
				await(t, f.answered.Load, 200)
				if err := s.Suspend(t.Context(), l.pass); err != nil {
					t.Fatalf("turn %d: %v", turn, err)
				}
				if n := open(s); n != 0 {
					t.Errorf("turn %d: %d connections have stayed", turn, n)
				}
				await(t, f.answered.Load, 200)
				s.Resume()
				l.do(t, note{Do: "yield"}, s)
				if n := open(s); n != 2 {
					t.Errorf("turn %d: %d connections have come back, want 2", turn, n)
				}
				await(t, f.answered.Load, 200)
				l.do(t, note{Do: "resume"}, s)
				if list := socketsAt(t, addr); len(list) != 5 {
					t.Errorf("turn %d: sockets %q, want two for packets, a listener and two connections", turn, list)
				}
			}
			l.do(t, note{Do: "end"}, s)
			await(t, f.answered.Load, 200)
			f.end()

			l, kill := child(t, s, w.there, upstream)
			if err := s.Suspend(t.Context(), l.pass); err != nil {
				t.Fatal(err)
			}
			serves(t, addr)
			kill()
			s.Resume()
			serves(t, addr)
			f = startFlood(t, addr, 2, 1)
			await(t, f.answered.Load, 200)
			f.end()
		})
	}
}
