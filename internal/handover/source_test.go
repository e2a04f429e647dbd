// These tests use phase and phaseChanged, which are not exported.

package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeSource is an agent with a few sockets, a cache that is a text, and connections that come
// to rest at once.
type fakeSource struct {
	t     testing.TB
	count int // of sockets
	cache []byte
	conns int

	save       func()
	sockets    func() ([]Socket, error)
	writeCache func(context.Context, io.Writer) error
	yield      func(context.Context, func(Conn) error) error

	statistics []byte

	mu       sync.Mutex
	returned []byte // the cache that a successor gave back
	adopted  int    // its connections
	events   []string
	kept     int // connections that pass has refused
	change   chan struct{}
}

func newFakeSource(t testing.TB) *fakeSource {
	return &fakeSource{t: t, count: 5, cache: bytes.Repeat([]byte("answers "), 20_000), conns: 3, change: make(chan struct{})}
}

func (e *fakeSource) note(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, event)
	close(e.change)
	e.change = make(chan struct{})
}

// await waits until the events so far are these.
func (e *fakeSource) await(want ...string) {
	e.t.Helper()
	late := time.After(patience)
	for {
		e.mu.Lock()
		got, change := strings.Join(e.events, " "), e.change
		e.mu.Unlock()
		if got == strings.Join(want, " ") {
			return
		}
		select {
		case <-change:
		case <-late:
			e.t.Fatalf("the estate has seen %q, want %q", got, want)
		}
	}
}

// patience of tests with what must happen: so long that only what hangs takes it.
const patience = 30 * time.Second

func (e *fakeSource) Save() {
	if e.save != nil {
		e.save()
	}
}

func (e *fakeSource) Sockets() ([]Socket, error) {
	if e.sockets != nil {
		return e.sockets()
	}
	var all []Socket
	for range e.count {
		all = append(all, Socket{Role: "udp", Addr: "127.0.0.1:53", File: pipeFile(e.t)})
	}
	return all, nil
}

// pipeFile is a file to hand over; the other end is closed.
func pipeFile(t testing.TB) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Error(err)
		return nil
	}
	w.Close()
	return r
}

func (e *fakeSource) WriteCache(ctx context.Context, w io.Writer) error {
	if e.writeCache != nil {
		return e.writeCache(ctx, w)
	}
	_, err := w.Write(e.cache)
	return err
}

func (e *fakeSource) Suspend(ctx context.Context, pass func(Conn) error) error {
	e.note("yield")
	if e.yield != nil {
		return e.yield(ctx, pass)
	}
	for i := range e.conns {
		f := pipeFile(e.t)
		if err := pass(Conn{Addr: "127.0.0.1:53", Read: make([]byte, i*1000), File: f}); err != nil {
			e.mu.Lock()
			e.kept++
			e.mu.Unlock()
		}
		f.Close()
	}
	return ctx.Err()
}

func (e *fakeSource) Resume() { e.note("resume") }

func (e *fakeSource) Statistics() []byte { return e.statistics }

// ReadCache takes what is newer.
func (e *fakeSource) ReadCache(_ context.Context, r io.Reader) error {
	e.note("cache")
	got, err := io.ReadAll(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.returned = got
	return err
}

func (e *fakeSource) ResumeReading() { e.note("read") }

func (e *fakeSource) Adopt(c Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopted++
	_ = c.File.Close()
}

func (e *fakeSource) Release() { e.note("release") }

// runningServer is a Host that serves.
type runningServer struct {
	*Server
	t      testing.TB
	dir    string
	cancel context.CancelFunc
	over   chan struct{}
}

// startServer lets e run in dir. At the test's end, no goroutine of it is left.
func startServer(t testing.TB, dir string, e Source, change func(*Server)) *runningServer {
	t.Helper()
	h, err := Listen(dir, e, Config{Version: "old", Logger: logger(t)})
	noError(t, err)
	if change != nil {
		change(h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningServer{Server: h, t: t, dir: dir, cancel: cancel, over: make(chan struct{})}
	go func() {
		defer close(r.over)
		h.Serve(ctx)
	}()
	t.Cleanup(r.end)
	return r
}

// end ends Serve, as the process's end does.
func (r *runningServer) end() {
	r.cancel()
	select {
	case <-r.over:
	case <-time.After(patience):
		r.t.Error("Serve does not end")
	}
}

// awaitPhase waits until the host is in a phase.
func (r *runningServer) awaitPhase(p phase) {
	r.t.Helper()
	late := time.After(patience)
	for {
		r.mu.Lock()
		now, changed := r.phase, r.phaseChanged
		r.mu.Unlock()
		if now == p {
			return
		}
		select {
		case <-changed:
		case <-late:
			r.t.Fatalf("the host is in phase %d, want %d", now, p)
		}
	}
}

// logger writes to the test's log while the test runs.
func logger(t testing.TB) *slog.Logger {
	w := &testLog{t: t}
	t.Cleanup(w.stop)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testLog struct {
	mu   sync.Mutex
	t    testing.TB
	over bool
}

func (q *testLog) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

func (q *testLog) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
}

// testContext is a context that ends before the test does.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// waitingContext returns a context that ends when the logger gets the message that a successor waits.
func waitingContext(t testing.TB) (context.Context, *slog.Logger) {
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	return ctx, slog.New(slog.NewTextHandler(waitWatcher(cancel), nil))
}

// waitWatcher is the function that is called at this message.
type waitWatcher func()

func (f waitWatcher) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "waiting for the running agent") {
		f()
	}
	return len(p), nil
}

// descriptors counts this process's files.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	noError(t, err)
	return len(list)
}

// noLeak fails the test if at its end more files are open than at the call.
func noLeak(t testing.TB) {
	// The poller's descriptors are made with the first connection, and stay.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "warm"))
	noError(t, err)
	l.Close()
	// What is forgotten must not be closed by the garbage collector.
	percent := debug.SetGCPercent(-1)
	before := descriptors(t)
	t.Cleanup(func() {
		defer debug.SetGCPercent(percent)
		end := time.Now().Add(patience)
		for descriptors(t) > before && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if now := descriptors(t); now > before {
			t.Errorf("%d files are open, before the test it was %d", now, before)
		}
	})
}

// takeOver goes the whole way of a successor, and gives what it got.
func takeOver(t testing.TB, dir string) (p *Predecessor, cache []byte, socketCount, conns int) {
	t.Helper()
	ctx := testContext(t)
	p, err := Connect(ctx, dir, Config{Version: "new", Logger: logger(t)})
	if err != nil || p == nil {
		t.Fatalf("Connect: %v, %v", p, err)
	}
	t.Cleanup(func() { p.Close() })
	all, err := p.Sockets(ctx)
	noError(t, err)
	for _, s := range all {
		if s.Role != "udp" || s.Addr != "127.0.0.1:53" {
			t.Errorf("socket %+v", s)
		}
		s.File.Close()
	}
	r, err := p.Cache(ctx)
	noError(t, err)
	cache, err = io.ReadAll(r)
	noError(t, err)
	r.Close()
	err = p.Commit(ctx, func(c Conn) {
		if len(c.Read) != conns*1000 || c.Addr != "127.0.0.1:53" {
			t.Errorf("connection %d has %d bytes, at %s", conns, len(c.Read), c.Addr)
		}
		conns++
		c.File.Close()
	})
	noError(t, err)
	return p, cache, len(all), conns
}

// errEstate is a fault of the old agent.
var errEstate = errors.New("no such luck")

// noError ends the test if err is not nil.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // not before: benchmarks would measure it
		t.Fatal(err)
	}
}

// Suspended reports whether a successor serves: from its commit on, for as long as it lives.
func (h *Server) Suspended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase >= draining
}
