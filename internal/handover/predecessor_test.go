// These tests use stateOK, await and close, which are not exported.

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakePredecessor is an old agent played by hand. The first line is for the script; what later ones
// get is said by later: a state, "" for silence.
type fakePredecessor struct {
	*fakeSuccessor
	listener *net.UnixListener
	later    string
	lines    sync.WaitGroup
}

// startFakePredecessor waits for a successor, answers its hello with hi, and gives the line to script.
func startFakePredecessor(t testing.TB, dir string, hi any, later string, script func(*fakePredecessor)) *fakePredecessor {
	t.Helper()
	l, _, err := listen(dir)
	noError(t, err)
	i := &fakePredecessor{listener: l, later: later}
	i.lines.Go(func() {
		for first := true; ; first = false {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			a := &fakeSuccessor{peerConn: newPeerConn(conn), t: t}
			a.setDeadline(time.Now().Add(patience))
			i.lines.Go(func() {
				defer a.close()
				if first {
					i.fakeSuccessor = a
					if hi != nil {
						_, _ = a.await(kindHello)
						a.say(kindHello, hi, nil)
					}
					script(i)
				} else if i.later != "" {
					_, _ = a.await(kindHello)
					a.say(kindHello, helloHead{Min: 1, Max: 1, State: i.later}, nil)
					if i.later == stateStopping {
						i.end()
						return
					}
				}
				_ = a.drain()
			})
		}
	})
	t.Cleanup(i.end)
	return i
}

// end is the end of the old agent's process, but for lines that are being played.
func (i *fakePredecessor) end() { i.listener.Close() }

// give sends n sockets, and says that they were said.
func (i *fakePredecessor) give(said, n int, more bool) {
	list := socketsHead{Sockets: make([]socketInfo, said), More: more}
	files := make([]*os.File, n)
	for j := range files {
		files[j] = pipeFile(i.t)
	}
	i.say(kindSockets, list, nil, files...)
	closeFiles(files)
}

// hostSteps are the way of an old agent that does all as it should.
var hostSteps = []struct {
	name string
	do   func(*fakePredecessor)
}{
	{"hello", func(i *fakePredecessor) {}},
	{"some sockets", func(i *fakePredecessor) {
		_, _ = i.await(kindWantSockets)
		i.give(3, 3, true)
	}},
	{"all sockets", func(i *fakePredecessor) { i.give(2, 2, false) }},
	{"half of the cache", func(i *fakePredecessor) {
		_, _ = i.await(kindWantCache)
		i.say(kindCache, nil, []byte("half"))
	}},
	{"the other half", func(i *fakePredecessor) { i.say(kindCache, cacheHead{End: true}, []byte("half")) }},
	{"committed", func(i *fakePredecessor) {
		_, _ = i.await(kindCommit)
		i.say(kindCommitted, nil, nil)
	}},
	{"a connection", func(i *fakePredecessor) {
		f := pipeFile(i.t)
		defer f.Close()
		i.say(kindConnection, connHead{Addr: "here"}, []byte("abc"), f)
	}},
	{"yielded", func(i *fakePredecessor) { i.say(kindYielded, nil, nil) }},
}

// result is how far a successor came.
type result struct {
	connect, sockets, cache, commit error
	got                             int // sockets
	bytes                           int
	conns                           int
	p                               *Predecessor
}

// shortTimeouts are limits for those who are kept waiting on purpose.
func shortTimeouts() timeouts {
	l := defaultTimeouts()
	l.hello, l.step, l.piece, l.drain = retryDelay, retryDelay, retryDelay, retryDelay
	return l
}

// succeed goes the whole way, whatever goes wrong.
func succeed(t testing.TB, dir string, limits timeouts) (r result) {
	ctx := testContext(t)
	r.p, r.connect = Connect(ctx, dir, Config{Logger: logger(t)})
	if r.p == nil {
		return r
	}
	r.p.limits = limits
	t.Cleanup(func() { r.p.Close() })
	var all []Socket
	all, r.sockets = r.p.Sockets(ctx)
	r.got = len(all)
	for _, s := range all {
		s.File.Close()
	}
	var c io.ReadCloser
	if c, r.cache = r.p.Cache(ctx); r.cache == nil {
		var b []byte
		b, r.cache = io.ReadAll(c)
		r.bytes = len(b)
	}
	r.commit = r.p.Commit(ctx, func(c Conn) {
		if string(c.Read) != "abc" || c.Addr != "here" {
			t.Errorf("connection %q at %q", c.Read, c.Addr)
		}
		c.File.Close()
		r.conns++
	})
	return r
}

var okay = map[string]any{"min": 1, "max": 1, "state": "ok", "new": map[string]any{"in": "a later version"}}

// TestLaterPredecessor: what a later version may send in between is passed over, at each step.
func TestLaterPredecessor(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	startFakePredecessor(t, dir, okay, "", func(i *fakePredecessor) {
		for n, s := range hostSteps {
			s.do(i)
			for files := range 3 {
				i.raw([]byte{byte(100 + n), 0, 0, 1, 2, 3}, files)
			}
		}
		i.end()
		i.close()
	})
	r := succeed(t, dir, defaultTimeouts())
	if err := errors.Join(r.connect, r.sockets, r.cache, r.commit); err != nil {
		t.Error(err)
	}
	if r.got != 5 || r.bytes != 8 || r.conns != 1 {
		t.Errorf("%+v", r)
	}
	<-r.p.Gone()
}

// TestPredecessorFails: whatever an old agent does at whatever step, the new one hears of it,
// and can tell one that has ended from one that lives.
func TestPredecessorFails(t *testing.T) {
	faults := []struct {
		name string
		do   func(*fakePredecessor)
		// later is what others hear that connect.
		later string
		ended bool
	}{
		{"ends", func(i *fakePredecessor) { i.end(); i.close() }, "", true},
		{"breaks off", func(i *fakePredecessor) { i.close() }, stateOK, false},
		{"breaks off and hangs", func(i *fakePredecessor) { i.close() }, "", false},
		{"breaks off to stop", func(i *fakePredecessor) { i.close() }, stateStopping, true},
		{"stalls", func(i *fakePredecessor) {}, stateOK, false},
		{"one byte", func(i *fakePredecessor) { i.raw([]byte{9}, 0) }, stateOK, false},
		{"a head that is none", func(i *fakePredecessor) {
			for _, k := range []messageKind{kindSockets, kindCache, kindConnection} {
				i.raw([]byte{byte(k), 0, 2, '{', '['}, 2)
			}
		}, stateOK, false},
		{"a head longer than the message", func(i *fakePredecessor) { i.raw([]byte{byte(kindYielded), 0, 9, '{', '}'}, 1) }, stateOK, false},
		{"a message longer than any", func(i *fakePredecessor) { i.raw(make([]byte, 3+maxHead+maxRest+1), 2) }, stateOK, false},
		{"too many files", func(i *fakePredecessor) { i.raw([]byte{200, 0, 0}, maxFiles+1) }, stateOK, false},
		{"far too many files", func(i *fakePredecessor) { i.raw([]byte{200, 0, 0}, 250) }, stateOK, false},
		{"unknown messages without end", func(i *fakePredecessor) {
			for range maxSkipped + 1 {
				i.say(messageKind(201), nil, nil)
			}
		}, stateOK, false},
	}
	for n := range len(hostSteps) {
		for _, f := range faults {
			t.Run("after "+hostSteps[n].name+"/"+f.name, func(t *testing.T) {
				noLeak(t)
				dir := shortDir(t)
				i := startFakePredecessor(t, dir, okay, f.later, func(i *fakePredecessor) {
					for _, s := range hostSteps[:n+1] {
						s.do(i)
					}
					f.do(i)
				})
				limits := shortTimeouts()
				if f.ended || n == len(hostSteps)-1 {
					limits = defaultTimeouts() // it is not too late that is looked for
				}
				r := succeed(t, dir, limits)
				if r.connect != nil {
					t.Fatal(r.connect)
				}
				first := errors.Join(r.sockets, r.cache, r.commit)
				switch {
				case n == len(hostSteps)-1: // it has yielded: nothing it does matters
					if first != nil {
						t.Error(first)
					}
					i.end()
					if f.name == "ends" {
						<-r.p.Gone()
					}
				case f.ended && r.commit != nil:
					t.Errorf("Commit after the old agent's end: %v", r.commit)
				case f.ended && n < 4 && !errors.Is(first, ErrGone): // later there is nothing left to ask for
					t.Errorf("of an agent that has ended: %v", first)
				case !f.ended && (first == nil || r.commit == nil || errors.Is(first, ErrGone)):
					t.Errorf("of an agent that lives: %v", first)
				}
			})
		}
	}
}

// TestMalformedPredecessor: sockets that are not there, or not said.
func TestMalformedPredecessor(t *testing.T) {
	for _, c := range []struct {
		said, files int
		more        bool
	}{{3, 2, false}, {2, 3, false}, {0, 1, true}, {1, 0, false}, {0, 0, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			noLeak(t)
			dir := t.TempDir()
			startFakePredecessor(t, dir, okay, stateOK, func(i *fakePredecessor) {
				_, _ = i.await(kindWantSockets)
				i.give(2, 2, true)
				i.give(c.said, c.files, c.more)
			})
			if r := succeed(t, dir, defaultTimeouts()); r.sockets == nil || r.commit == nil || r.got != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("without end", func(t *testing.T) {
		noLeak(t)
		dir := t.TempDir()
		startFakePredecessor(t, dir, okay, stateOK, func(i *fakePredecessor) {
			_, _ = i.await(kindWantSockets)
			for range maxSockets/maxFiles + 1 {
				i.give(maxFiles, maxFiles, true)
			}
			i.give(1, 1, false)
		})
		if r := succeed(t, dir, defaultTimeouts()); r.sockets == nil || r.got != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("connections", func(t *testing.T) {
		noLeak(t)
		dir := t.TempDir()
		startFakePredecessor(t, dir, okay, stateOK, func(i *fakePredecessor) {
			for _, s := range hostSteps[:6] {
				s.do(i)
			}
			i.raw([]byte{byte(kindConnection), 0, 2, '{', '}'}, 0)
			i.raw([]byte{byte(kindConnection), 0, 2, '{', '}'}, 2)
			i.raw([]byte{byte(kindConnection), 0, 2, '{', ']'}, 1)
			for _, s := range hostSteps[6:] {
				s.do(i)
			}
		})
		if r := succeed(t, dir, defaultTimeouts()); r.commit != nil || r.conns != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// TestConnectFails: an agent that can't be dealt with is an error at once, with who it is.
func TestConnectFails(t *testing.T) {
	cases := []struct {
		name   string
		hi     any
		script func(*fakePredecessor)
	}{
		{"silent", nil, func(*fakePredecessor) {}},
		{"no hello", nil, func(i *fakePredecessor) { i.say(kindCommitted, nil, nil) }},
		{"not JSON", nil, func(i *fakePredecessor) { i.raw([]byte{byte(kindHello), 0, 1, 'x'}, 5) }},
		{"files", nil, func(i *fakePredecessor) { i.raw([]byte{byte(kindHello), 0, 1, 'x'}, maxFiles+1) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			noLeak(t)
			dir := t.TempDir()
			startFakePredecessor(t, dir, c.hi, "", c.script)
			p, err := connect(testContext(t), dir, Config{}, shortTimeouts())
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) || !strings.Contains(err.Error(), "-handover-dir") {
				t.Errorf("%v, %v", p, err)
			}
		})
	}
}

// TestSuccessorVersions: without a common version the successor waits for the old agent's
// end, and starts as if there had been nobody.
func TestSuccessorVersions(t *testing.T) {
	cases := []struct {
		min, max int
		spoken   bool
	}{{1, 1, true}, {0, 1, true}, {1, 9, true}, {2, 3, false}, {0, 0, false}, {5, 1, false}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d-%d", c.min, c.max), func(t *testing.T) {
			noLeak(t)
			dir := t.TempDir()
			met := make(chan *fakePredecessor, 1)
			i := startFakePredecessor(t, dir, helloHead{Min: c.min, Max: c.max, State: stateOK}, "", func(i *fakePredecessor) { met <- i })
			if c.spoken {
				p, err := Connect(testContext(t), dir, Config{})
				if p == nil || err != nil {
					t.Fatalf("%v, %v", p, err)
				}
				p.Close()
				return
			}
			go func() {
				first := <-met
				i.end()
				first.close()
			}()
			if p, err := Connect(testContext(t), dir, Config{}); p != nil || err != nil {
				t.Errorf("after the end of an agent of another version: %v, %v", p, err)
			}
			startFakePredecessor(t, dir, helloHead{Min: c.min, Max: c.max, State: stateOK}, "", func(i *fakePredecessor) {})
			waits, log := waitingContext(t)
			if p, err := Connect(waits, dir, Config{Logger: log}); p != nil || !errors.Is(err, ErrVersion) {
				t.Errorf("beside an agent of another version: %v, %v", p, err)
			}
		})
	}
}

// TestCancel: a successor that is told to end does so at every step, and is in charge of nothing.
func TestCancel(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	hold := make(chan struct{})
	e.yield = func(ctx context.Context, _ func(Conn) error) error {
		close(hold)
		<-ctx.Done()
		return ctx.Err()
	}
	h := startServer(t, dir, e, nil)
	p, err := Connect(testContext(t), dir, Config{})
	noError(t, err)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-hold
		cancel()
	}()
	if err := p.Commit(ctx, func(Conn) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v", err)
	}
	h.awaitPhase(serving)
	e.await("yield", "resume")
	for _, err := range []error{p.Commit(testContext(t), nil), second(p.Sockets(testContext(t))), second(p.Cache(testContext(t)))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after it: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestCacheClosed: a stream that is not read to its end is in nobody's way.
func TestCacheClosed(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	e.cache = make([]byte, 2*maxSkipped*cachePieceSize)
	startServer(t, dir, e, nil)
	p, err := Connect(testContext(t), dir, Config{})
	noError(t, err)
	defer p.Close()
	for i := range 3 {
		c, err := p.Cache(testContext(t))
		noError(t, err)
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			c.Close()
			c.Close()
		}
	}
	all, err := p.Sockets(testContext(t))
	if err != nil || len(all) != e.count {
		t.Errorf("%d sockets, %v", len(all), err)
	}
	for _, s := range all {
		s.File.Close()
	}
}

// shortDir returns a directory for the test whose path, unlike that of t.TempDir, does not
// contain the test's name: the paths of sockets are limited.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "Test")
	noError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
