// These tests use conns, listen and maxRest, which are not exported.

package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTakeOver(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	e.count = 3*maxFiles + 7
	h := startServer(t, dir, e, nil)
	p, cache, count, conns := takeOver(t, dir)
	if !bytes.Equal(cache, e.cache) || count != e.count || conns != e.conns || e.kept != 0 {
		t.Errorf("%d bytes of cache, %d sockets, %d connections; want %d, %d, %d", len(cache), count, conns, len(e.cache), e.count, e.conns)
	}
	e.await("yield")
	if !h.Suspended() {
		t.Error("not yielded")
	}
	select {
	case <-h.Done():
		t.Error("the old agent may end before the new one is settled")
	default:
	}
	p.Settled()
	<-h.Done()
	if s := h.Stats(); s != (Stats{Completed: 1}) {
		t.Errorf("%+v", s)
	}
	if !h.Stop(testContext(t)) {
		t.Error("Stop after a hand-over says that there was none")
	}
	h.end()
	<-p.Gone()
	e.await("yield")
}

// TestStopped: an agent that is on its way out does not come back.
func TestStopped(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	p, _, _, _ := takeOver(t, dir)
	p.Settled()
	if !h.Stop(testContext(t)) {
		t.Error("Stop after a hand-over says that there was none")
	}
	p.Close()
	for len(h.conns) > 0 {
		time.Sleep(time.Millisecond)
	}
	e.await("yield")
	if !h.Suspended() {
		t.Error("back at work")
	}
}

func TestNoPredecessor(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "not", "there")} {
		if p, err := Connect(testContext(t), d, Config{}); p != nil || err != nil {
			t.Errorf("%s: %v, %v", d, p, err)
		}
	}
	h := startServer(t, dir, newFakeSource(t), nil)
	h.end()
	if _, err := os.Lstat(filepath.Join(dir, SocketName)); err != nil {
		t.Fatal(err)
	}
	if p, err := Connect(testContext(t), dir, Config{}); p != nil || err != nil {
		t.Errorf("at a dead socket: %v, %v", p, err)
	}
}

func TestResumeAfterSuccessorDies(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	for i := range 3 {
		p, _, _, _ := takeOver(t, dir)
		if i == 1 { // it has had time to make its own socket
			l, _, err := listen(dir)
			noError(t, err)
			l.Close()
		}
		p.Settled()
		h.awaitPhase(done)
		p.Close()
		h.awaitPhase(serving)
		if h.Suspended() {
			t.Error("yielded, after all")
		}
	}
	e.await("yield", "resume", "yield", "resume", "yield", "resume")
	if s := h.Stats(); s != (Stats{Completed: 3, Resumed: 3}) {
		t.Errorf("%+v", s)
	}
}

func TestSourceErrors(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	e.sockets = func() ([]Socket, error) { return []Socket{{File: pipeFile(t)}}, errEstate }
	e.writeCache = func(_ context.Context, w io.Writer) error {
		_, _ = w.Write(make([]byte, cachePieceSize+5))
		return errEstate
	}
	e.yield = func(context.Context, func(Conn) error) error { return errEstate }
	h := startServer(t, dir, e, nil)
	ctx := testContext(t)
	p, err := Connect(ctx, dir, Config{})
	noError(t, err)
	defer p.Close()
	if _, err := p.Sockets(ctx); err == nil || !strings.Contains(err.Error(), errEstate.Error()) {
		t.Errorf("Sockets: %v", err)
	}
	r, err := p.Cache(ctx)
	noError(t, err)
	if b, err := io.ReadAll(r); len(b) != cachePieceSize+5 || err == nil || !strings.Contains(err.Error(), errEstate.Error()) {
		t.Errorf("%d bytes of cache, %v", len(b), err)
	}
	if err := p.Commit(ctx, nil); err != nil {
		t.Errorf("Commit: %v", err)
	}
	p.Settled()
	<-h.Done()
}

// TestBusy: a second successor waits for the first one.
func TestBusy(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	first, err := Connect(testContext(t), dir, Config{})
	noError(t, err)
	waits, log := waitingContext(t)
	if _, err := Connect(waits, dir, Config{Logger: log}); !errors.Is(err, ErrBusy) {
		t.Errorf("while another one is at work: %v", err)
	}
	got := make(chan *Predecessor)
	go func() {
		p, _ := Connect(testContext(t), dir, Config{})
		got <- p
	}()
	first.Close()
	second := <-got
	if second == nil {
		t.Fatal("no place after the first one has gone")
	}
	second.Close()
	h.awaitPhase(serving)
	e.await()
}

// TestStop: who stops says so, and waits for the hand-over that is under way.
func TestStop(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	t.Run("nobody", func(t *testing.T) {
		h := startServer(t, dir, newFakeSource(t), nil)
		if h.Stop(testContext(t)) {
			t.Error("yielded, to nobody")
		}
		got := make(chan error)
		go func() {
			p, err := Connect(testContext(t), dir, Config{Logger: logger(t)})
			if p != nil {
				err = errors.New("connected to an agent that stops")
			}
			got <- err
		}()
		for len(h.conns) == 0 {
			time.Sleep(time.Millisecond)
		}
		h.end()
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
	t.Run("a successor that commits", func(t *testing.T) {
		h := startServer(t, dir, newFakeSource(t), nil)
		p, err := Connect(testContext(t), dir, Config{})
		noError(t, err)
		got := make(chan bool)
		go func() { got <- h.Stop(testContext(t)) }()
		for h.state() != stateStopping {
			time.Sleep(time.Millisecond)
		}
		noError(t, p.Commit(testContext(t), func(c Conn) { c.File.Close() }))
		p.Settled()
		if !<-got {
			t.Error("Stop did not wait for the commit")
		}
		h.end()
		<-p.Gone()
	})
	t.Run("a successor that does not", func(t *testing.T) {
		h := startServer(t, dir, newFakeSource(t), nil)
		p, err := Connect(testContext(t), dir, Config{})
		noError(t, err)
		short, cancel := context.WithTimeout(context.Background(), retryDelay)
		defer cancel()
		if h.Stop(short) {
			t.Error("yielded without a commit")
		}
		got := make(chan error)
		go func() {
			_, err := p.Sockets(testContext(t))
			got <- err
		}()
		for len(h.conns) == 0 {
			time.Sleep(time.Millisecond)
		}
		h.end()
		if err := <-got; !errors.Is(err, ErrGone) {
			t.Errorf("of an agent that has ended: %v", err)
		}
		if err := p.Commit(testContext(t), nil); err != nil {
			t.Errorf("Commit without a predecessor: %v", err)
		}
	})
}

func TestReady(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	if err := Ready(testContext(t), dir); err == nil || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("of nobody: %v", err)
	}
	faults := make(chan error, 1)
	h := startServer(t, dir, newFakeSource(t), func(h *Server) {
		h.config.Ready = func() error {
			select {
			case err := <-faults:
				return err
			default:
				return nil
			}
		}
	})
	faults <- errEstate
	if err := Ready(testContext(t), dir); err == nil || !strings.Contains(err.Error(), errEstate.Error()) {
		t.Errorf("of one that is not: %v", err)
	}
	if err := Ready(testContext(t), dir); err != nil {
		t.Error(err)
	}
	p, _, _, _ := takeOver(t, dir)
	if err := Ready(testContext(t), dir); err == nil || !strings.Contains(err.Error(), "handed over") {
		t.Errorf("of one that has handed over: %v", err)
	}
	p.Close()
	h.awaitPhase(serving)
}

func TestDirectory(t *testing.T) {
	noLeak(t)
	e := newFakeSource(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	h, err := Listen(dir, e, Config{})
	noError(t, err)
	h.listener.Close()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, SocketName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	noError(t, os.Chmod(dir, 0o777))
	refused := map[string]string{
		dir:                      "mode 0700",
		strings.Repeat("/x", 60): "shorter path",
		filepath.Join(t.TempDir(), strings.Repeat("y", maxPath)): "shorter path",
		filepath.Join(dir, SocketName):                           "not a directory",
	}
	for dir, want := range refused {
		if dir[:2] == "/x" {
			if _, err := dial(dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("dial %s: %v", dir, err)
			}
			continue
		}
		if _, err := Listen(dir, e, Config{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-handover-dir") {
			t.Errorf("%s: %v, want something with %q", dir, err, want)
		}
	}
}

// TestDirectoryOfAnother: a directory that another user owns, or that a link leads to, is
// refused at both ends, and nothing is made there; at the one that is opened, sockets are
// made even when its path leads elsewhere.
func TestDirectoryOfAnother(t *testing.T) {
	noLeak(t)
	e := newFakeSource(t)
	own, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	noError(t, os.Symlink(own, link))
	refused := map[string]string{link: "symbolic link", link + "/": "symbolic link"}
	if os.Geteuid() == 0 { // only root can give directories away
		foreign := t.TempDir()
		noError(t, os.Chown(foreign, 12345, 0))
		refused[foreign] = "belongs to user 12345; give it to the agent's user (chown 0)"
	}
	for dir, want := range refused {
		_, listening := Listen(dir, e, Config{})
		_, connecting := Connect(testContext(t), dir, Config{})
		for _, err := range []error{listening, connecting} {
			if !errors.Is(err, ErrFolder) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-handover-dir "+dir) {
				t.Errorf("%s: %v, want something with %q", dir, err, want)
			}
		}
		if list, err := os.ReadDir(dir); len(list) > 0 || err != nil {
			t.Errorf("%s holds %v, %v", dir, list, err)
		}
	}
	f, err := openSocketDir(own)
	noError(t, err)
	defer f.close()
	moved := filepath.Join(t.TempDir(), "moved")
	noError(t, errors.Join(os.Rename(own, moved), os.Mkdir(own, 0o700)))
	l, err := listenPrivate(f.at("x"))
	noError(t, err)
	defer l.Close()
	if info, err := os.Lstat(filepath.Join(moved, "x")); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

// TestSweep: what a process has left that died over making its socket goes, what is new stays.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	l, _, err := listen(dir)
	noError(t, err)
	defer l.Close()
	for _, n := range []string{"handover.1.new", "handover.2.new"} {
		noError(t, os.Rename(filepath.Join(dir, SocketName), filepath.Join(dir, n)))
		l, _, err := listen(dir)
		noError(t, err)
		defer l.Close()
	}
	old := time.Now().Add(-2 * tempMaxAge)
	noError(t, os.Chtimes(filepath.Join(dir, "handover.1.new"), old, old))
	removeStale(dir)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 2 || filepath.Base(left[0]) != "handover.2.new" || filepath.Base(left[1]) != SocketName {
		t.Errorf("%v", left)
	}
}

// TestPass: connections are passed from many goroutines, with up to a whole message; what does
// not go stays, and is in nobody's way.
func TestPass(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	const each, many = 40, 8
	late := make(chan error, 1)
	e.yield = func(ctx context.Context, pass func(Conn) error) error {
		one := func(size int) error {
			f := pipeFile(t)
			defer f.Close()
			return pass(Conn{Addr: "[::1]:53", Read: bytes.Repeat([]byte{7}, size), File: f})
		}
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				for j := range each {
					if err := one(i*each + j); err != nil {
						t.Errorf("pass: %v", err)
					}
				}
			})
		}
		all.Wait()
		if err := one(maxRest + 1); err == nil {
			t.Error("more than a message was passed")
		}
		if err := one(maxRest); err != nil {
			t.Errorf("a message that lacks its last byte: %v", err)
		}
		go func() {
			for {
				if err := one(1); err != nil {
					late <- err
					return
				}
			}
		}()
		return ctx.Err()
	}
	h := startServer(t, dir, e, nil)
	p, err := Connect(testContext(t), dir, Config{})
	noError(t, err)
	defer p.Close()
	seen := make(map[int]int)
	err = p.Commit(testContext(t), func(c Conn) {
		seen[len(c.Read)]++
		if _, err := c.File.Stat(); err != nil || bytes.Count(c.Read, []byte{7}) != len(c.Read) || c.Addr != "[::1]:53" {
			t.Errorf("a connection of %d bytes at %q: %v", len(c.Read), c.Addr, err)
		}
		c.File.Close()
	})
	noError(t, err)
	if err := <-late; !errors.Is(err, errOver) {
		t.Errorf("pass after the end of Yield: %v", err)
	}
	delete(seen, 1) // one of those, or late
	if want := each * many; len(seen) != want || seen[maxRest] != 1 {
		t.Errorf("%d sizes of connections, want %d", len(seen), want)
	}
	p.Settled()
	h.awaitPhase(done)
}
