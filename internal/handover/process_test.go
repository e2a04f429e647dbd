// These tests use serving, cachePieceSize and conns, which are not exported.

package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// part names the part that this test binary plays as a process of its own; dir and until
// go with it.
const (
	part  = "NODENS_TEST_HANDOVER_PART"
	dirOf = "NODENS_TEST_HANDOVER_DIR"
	until = "NODENS_TEST_HANDOVER_UNTIL"
)

func TestMain(m *testing.M) {
	dir, last := os.Getenv(dirOf), os.Getenv(until)
	switch os.Getenv(part) {
	case "successor":
		playSuccessor(dir, last)
	case "predecessor":
		playPredecessor(dir, last)
	case "probe":
		fmt.Println(Ready(context.Background(), dir))
	default:
		os.Exit(m.Run())
	}
}

// reached says that the process is at a step, and stays there if it is the last.
func reached(step, last string) {
	fmt.Println(step)
	if step == last {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends, or kills
		os.Exit(0)
	}
}

// must ends the process with err.
func must(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// deeds are the steps of the successor's process.
var deeds = []string{"connected", "sockets", "half of the cache", "cache", "committed", "listens", "settled"}

func playSuccessor(dir, last string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := Connect(ctx, dir, Config{Version: "child"})
	must(err)
	reached("connected", last)
	all, err := p.Sockets(ctx)
	must(err)
	reached("sockets", last)
	r, err := p.Cache(ctx)
	must(err)
	_, err = io.ReadFull(r, make([]byte, 10))
	must(err)
	reached("half of the cache", last)
	_, err = io.Copy(io.Discard, r)
	must(err)
	reached("cache", last)
	must(p.Commit(ctx, func(c Conn) {}))
	reached("committed", last)
	h, err := Listen(dir, &successorSource{all}, Config{Version: "child"})
	must(err)
	go h.Serve(context.Background())
	reached("listens", last)
	p.Settled()
	reached("settled", last)
}

// successorSource hands on what a process has got.
type successorSource struct{ all []Socket }

func (e *successorSource) Save() {}

func (e *successorSource) Sockets() ([]Socket, error) {
	fds := make([]Socket, len(e.all))
	for i, s := range e.all {
		fd, err := descriptor(s.File)
		if err == nil {
			fd, err = syscall.Dup(fd)
		}
		if err != nil {
			return nil, err
		}
		fds[i] = Socket{Role: s.Role, Addr: s.Addr, File: os.NewFile(uintptr(fd), "copy")}
	}
	return fds, nil
}

func (e *successorSource) WriteCache(_ context.Context, w io.Writer) error {
	_, err := w.Write(make([]byte, 1<<20))
	return err
}

func (e *successorSource) Suspend(context.Context, func(Conn) error) error { return nil }

func (e *successorSource) Resume() {}

func (e *successorSource) Statistics() []byte { return []byte("statistics") }

func (e *successorSource) ReadCache(_ context.Context, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (e *successorSource) ResumeReading() {}

func (e *successorSource) Adopt(c Conn) { _ = c.File.Close() }

func (e *successorSource) Release() {}

// stuckSource is one whose process is killed in the middle of last.
type stuckSource struct {
	successorSource
	last string
}

func (e *stuckSource) Sockets() ([]Socket, error) {
	reached("sockets", e.last)
	return e.successorSource.Sockets()
}

func (e *stuckSource) WriteCache(ctx context.Context, w io.Writer) error {
	_, _ = w.Write(make([]byte, 2*cachePieceSize))
	reached("cache", e.last)
	return nil
}

func (e *stuckSource) Suspend(_ context.Context, pass func(Conn) error) error {
	reached("yield", e.last)
	return nil
}

func playPredecessor(dir, last string) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	f, err := conn.File()
	must(err)
	e := &stuckSource{successorSource{[]Socket{{Role: "udp", Addr: conn.LocalAddr().String(), File: f}}}, last}
	h, err := Listen(dir, e, Config{Version: "child"})
	must(err)
	go h.Serve(context.Background())
	reached("serves", "serves")
}

// child is a process of this test binary.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.Closer
	ended bool
}

// spawn starts one, which ends with the test at the latest.
func spawn(t testing.TB, role, dir, last string, as *syscall.SysProcAttr) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe") // whose path others may not see
	cmd.Env = append(os.Environ(), part+"="+role, dirOf+"="+dir, until+"="+last)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = as
	out, err := cmd.StdoutPipe()
	noError(t, err)
	in, err := cmd.StdinPipe()
	noError(t, err)
	noError(t, cmd.Start())
	c := &child{t: t, cmd: cmd, lines: bufio.NewScanner(out), stdin: in}
	t.Cleanup(c.kill)
	return c
}

// reach waits until the process says that it has reached a step.
func (c *child) reach(step string) {
	c.t.Helper()
	for c.lines.Scan() {
		switch line := c.lines.Text(); {
		case line == step:
			return
		case strings.HasPrefix(line, "error:"):
			c.t.Fatalf("the process on its way to %q: %s", step, line)
		}
	}
	c.t.Fatalf("the process has ended before %q", step)
}

// kill is SIGKILL, and the wait for it.
func (c *child) kill() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// TestSuccessorKilled: a new agent's process is killed at each step of its way; the old one
// goes on, or goes back to work, and the next one takes over from it.
func TestSuccessorKilled(t *testing.T) {
	noLeak(t)
	for i, step := range deeds {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			e := newFakeSource(t)
			e.cache = make([]byte, 1<<20)
			h := startServer(t, dir, e, nil)
			c := spawn(t, "successor", dir, step, nil)
			c.reach(step)
			if before := i < slices.Index(deeds, "committed"); before {
				h.awaitPhase(transferring)
			} else if !h.Suspended() {
				t.Error("not yielded")
			}
			c.kill()
			h.awaitPhase(serving)
			next := spawn(t, "successor", dir, "settled", nil)
			next.reach("settled")
			<-h.Done()
			if i < slices.Index(deeds, "committed") {
				e.await("yield")
			} else {
				e.await("yield", "resume", "yield")
			}
			if !h.Stop(testContext(t)) {
				t.Error("Stop: no successor in charge")
			}
		})
	}
}

// TestPredecessorKilled: the old agent's process is killed in the middle of each step. The new one hears
// that it has ended, and what waits in a socket that it got before is still there.
func TestPredecessorKilled(t *testing.T) {
	noLeak(t)
	for _, step := range []string{"serves", "sockets", "cache", "yield"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			c := spawn(t, "predecessor", dir, step, nil)
			c.reach("serves")
			ctx := testContext(t)
			p, err := Connect(ctx, dir, Config{})
			if p == nil || err != nil {
				t.Fatalf("%v, %v", p, err)
			}
			defer p.Close()
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				if step != "serves" {
					c.reach(step)
				}
				c.kill()
			}()
			if step == "serves" {
				<-killed
			}
			all, err := p.Sockets(ctx)
			if early := step == "serves" || step == "sockets"; errors.Is(err, ErrGone) != early || early != (len(all) == 0) {
				t.Errorf("%d sockets, %v", len(all), err)
			}
			for _, s := range all {
				askQueued(t, s, killed, step)
			}
			r, err := p.Cache(ctx)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
			}
			if errors.Is(err, ErrGone) != (step != "yield") {
				t.Errorf("Cache: %v", err)
			}
			if err := p.Commit(ctx, nil); err != nil {
				t.Errorf("Commit: %v", err)
			}
			<-p.Gone()
			<-killed
			if p, err := Connect(ctx, dir, Config{}); p != nil || err != nil {
				t.Errorf("somebody is there yet: %v, %v", p, err)
			}
		})
	}
}

// askQueued sends a packet to a socket that both processes hold, and reads it when the old
// one has been killed.
func askQueued(t *testing.T, s Socket, killed <-chan struct{}, step string) {
	t.Helper()
	defer s.File.Close()
	out, err := net.Dial("udp", s.Addr)
	noError(t, err)
	defer out.Close()
	if _, err := out.Write([]byte(step)); err != nil {
		t.Fatal(err)
	}
	in, err := net.FilePacketConn(s.File)
	noError(t, err)
	t.Cleanup(func() {
		defer in.Close()
		<-killed
		in.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 100)
		if n, _, err := in.ReadFrom(b); err != nil || string(b[:n]) != step {
			t.Errorf("read %q, %v; want %q", b[:n], err, step)
		}
	})
}

// TestGenerations: an agent whose successor has handed on stays yielded, and goes back to work
// when nobody is in charge any more.
func TestGenerations(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	oldest := newFakeSource(t)
	o := startServer(t, dir, oldest, nil)
	p1, _, _, _ := takeOver(t, dir)
	middle := newFakeSource(t)
	n := startServer(t, dir, middle, nil)
	p1.Settled()
	<-o.Done()
	p2, _, _, _ := takeOver(t, dir)
	m := startServer(t, dir, newFakeSource(t), nil)
	p2.Settled()
	<-n.Done()
	n.end()
	p1.Close() // which n's process held
	for len(m.conns) == 0 {
		time.Sleep(time.Millisecond) // the oldest finds out who is in charge
	}
	oldest.await("yield")
	if !o.Suspended() {
		t.Error("back at work beside another one")
	}
	m.end()
	p2.Close()
	o.awaitPhase(serving)
	oldest.await("yield", "resume")
	middle.await("yield")
	p, _, _, _ := takeOver(t, dir)
	p.Settled()
	o.awaitPhase(done)
}

// TestOtherNamespace: a probe of one container does not take the agent of another for its own.
func TestOtherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace takes root")
	}
	dir := t.TempDir()
	startServer(t, dir, newFakeSource(t), nil)
	for flags, want := range map[uintptr]string{0: "<nil>", syscall.CLONE_NEWPID: "is not in this container"} {
		c := spawn(t, "probe", dir, "", &syscall.SysProcAttr{Cloneflags: flags})
		if !c.lines.Scan() || !strings.Contains(c.lines.Text(), want) {
			t.Errorf("Ready in a process with the flags %#x says %q, want %q", flags, c.lines.Text(), want)
		}
	}
}

// TestOtherUsers: who is neither this user nor root gets nothing, at either end.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be somebody else takes root")
	}
	noLeak(t)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	t.Run("successor", func(t *testing.T) {
		dir := open(t)
		e := newFakeSource(t)
		startServer(t, dir, e, nil)
		probe := func() string {
			c := spawn(t, "probe", dir, "", nobody)
			c.lines.Scan()
			return c.lines.Text()
		}
		if got := probe(); !strings.Contains(got, "permission denied") {
			t.Errorf("at the socket as it is: %q", got)
		}
		noError(t, os.Chmod(filepath.Join(dir, SocketName), 0o666))
		if got := probe(); !strings.Contains(got, errClosed.Error()) {
			t.Errorf("at a socket that is open to all: %q", got)
		}
	})
	t.Run("predecessor", func(t *testing.T) {
		dir := open(t)
		noError(t, os.Chown(dir, 65534, 65534))
		spawn(t, "predecessor", dir, "serves", nobody).reach("serves")
		if p, err := Connect(testContext(t), dir, Config{}); p != nil || !errors.Is(err, ErrFolder) {
			t.Errorf("in a folder of another user: %v, %v", p, err)
		}
		noError(t, os.Chown(dir, 0, 0))
		if p, err := Connect(testContext(t), dir, Config{}); p != nil || err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("%v, %v", p, err)
		}
	})
}

// open is a directory that others find.
func open(t *testing.T) string {
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		noError(t, os.Chmod(d, 0o755))
	}
	return dir
}
