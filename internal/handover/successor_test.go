// These tests use kindHello, serving and errClosed, which are not exported.

package handover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeSuccessor plays one end of a hand-over by hand.
type fakeSuccessor struct {
	*peerConn
	t testing.TB
}

// connectFakeSuccessor is a successor that has connected and not said anything.
func connectFakeSuccessor(t testing.TB, dir string) *fakeSuccessor {
	t.Helper()
	l, err := dial(dir)
	if l == nil || err != nil {
		t.Fatalf("dial: %v, %v", l, err)
	}
	t.Cleanup(l.close)
	l.setDeadline(time.Now().Add(patience))
	return &fakeSuccessor{peerConn: l, t: t}
}

// say sends a message; the other end may have gone.
func (a *fakeSuccessor) say(k messageKind, head any, rest []byte, files ...*os.File) {
	if err := a.send(k, head, rest, files...); err != nil && !errors.Is(err, errClosed) {
		a.t.Fatal(err)
	}
}

// raw sends bytes as they are, with n files.
func (a *fakeSuccessor) raw(p []byte, n int) {
	r := pipeFile(a.t)
	defer r.Close()
	fd, err := descriptor(r)
	if err != nil {
		a.t.Fatal(err)
	}
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	var control []byte
	if n > 0 {
		control = unix.UnixRights(fds...)
	}
	if _, _, err := a.unixConn.WriteMsgUnix(p, control, nil); err != nil && !errors.Is(normalizeClosed(err), errClosed) {
		a.t.Fatal(err)
	}
}

// hear receives one of kinds, and drops what is with it.
func (a *fakeSuccessor) hear(kinds ...messageKind) message {
	a.t.Helper()
	m, err := a.await(kinds...)
	if err != nil {
		a.t.Fatalf("waiting for a message of kind %v: %v", kinds, err)
	}
	m.close()
	return m
}

// lastPiece hears the cache to its end.
func (a *fakeSuccessor) lastPiece() {
	a.t.Helper()
	for {
		var at cacheHead
		if err := decode(kindCache, a.hear(kindCache).head, &at); err != nil {
			a.t.Fatal(err)
		}
		if at.End {
			return
		}
	}
}

// successorSteps are the way of a successor.
var successorSteps = []struct {
	name string
	do   func(a *fakeSuccessor)
}{
	{"hello", func(a *fakeSuccessor) {
		a.say(kindHello, map[string]any{"min": 1, "max": 1, "purpose": "takeover", "patience_ms": 60_000, "new": []int{1}}, nil)
		a.hear(kindHello)
	}},
	{"sockets", func(a *fakeSuccessor) {
		a.say(kindWantSockets, map[string]any{"new": "field"}, nil)
		a.hear(kindSockets)
	}},
	{"half of the cache", func(a *fakeSuccessor) {
		a.say(kindWantCache, nil, []byte("more than expected"))
		a.hear(kindCache)
	}},
	{"the other half", func(a *fakeSuccessor) { a.lastPiece() }},
	{"commit", func(a *fakeSuccessor) {
		a.say(kindCommit, nil, nil)
		a.hear(kindCommitted)
	}},
	{"yielded", func(a *fakeSuccessor) { a.hear(kindYielded) }},
	{"settled", func(a *fakeSuccessor) { a.say(kindSettled, nil, nil) }},
}

// commits is the number of steps behind which the successor is in charge.
const commits = 5

// TestSuccessorFails: whatever a successor does at whatever step, the old agent goes on as if
// nothing had happened, or goes back to work if it had stopped; and the next one finds it.
func TestSuccessorFails(t *testing.T) {
	oversize := make([]byte, 3+maxHead+maxRest+1)
	faults := []struct {
		name  string
		do    func(a *fakeSuccessor)
		stays bool // the connection stays open, so after the commit all is well
	}{
		{"closes", func(a *fakeSuccessor) { a.close() }, false},
		{"one byte", func(a *fakeSuccessor) { a.raw([]byte{9}, 0) }, true},
		{"one byte with files", func(a *fakeSuccessor) { a.raw([]byte{9}, 3) }, true},
		{"a head longer than the message", func(a *fakeSuccessor) { a.raw([]byte{byte(kindCommit), 0, 9, '{', '}'}, 0) }, true},
		{"a head longer than any", func(a *fakeSuccessor) { a.raw(append([]byte{byte(kindCommit), 255, 255}, make([]byte, 1<<16)...), 0) }, true},
		{"a message longer than any", func(a *fakeSuccessor) { a.raw(oversize, 2) }, true},
		{"too many files", func(a *fakeSuccessor) { a.raw([]byte{200, 0, 0}, maxFiles+1) }, true},
		{"far too many files", func(a *fakeSuccessor) { a.raw([]byte{200, 0, 0}, 250) }, true},
		{"unknown messages without end", func(a *fakeSuccessor) {
			for range maxSkipped + 1 {
				a.say(messageKind(201), nil, nil)
			}
		}, true},
	}
	for n := range len(successorSteps) + 1 {
		for _, f := range faults {
			at := "before all"
			if n > 0 {
				at = "after " + successorSteps[n-1].name
			}
			t.Run(at+"/"+f.name, func(t *testing.T) {
				noLeak(t)
				dir := shortDir(t)
				e := newFakeSource(t)
				e.cache = make([]byte, 1<<19) // more than the buffers of a socket hold
				h := startServer(t, dir, e, func(h *Server) {
					h.limits.settle = retryDelay / 2 // nobody tells
				})
				a := connectFakeSuccessor(t, dir)
				for _, s := range successorSteps[:n] {
					s.do(a)
				}
				f.do(a)
				var reading sync.WaitGroup
				reading.Go(func() {
					if err := a.drain(); f.name != "closes" && !errors.Is(err, errClosed) {
						t.Errorf("the line stays open: %v", err)
					}
				})
				switch {
				case n < commits:
					if n > 0 {
						h.awaitPhase(serving)
					}
					e.await()
				case f.stays:
					h.awaitPhase(done)
					e.await("yield")
					a.close()
					fallthrough
				default:
					h.awaitPhase(serving)
					e.await("yield", "resume")
				}
				reading.Wait()
				p, _, _, _ := takeOver(t, dir)
				p.Settled()
				h.awaitPhase(done)
				if n < commits {
					e.await("yield")
				} else {
					e.await("yield", "resume", "yield")
				}
			})
		}
	}
}

// TestSuccessorStalls: a successor that does not go on holds up nobody for ever.
func TestSuccessorStalls(t *testing.T) {
	noLeak(t)
	t.Run("all", func(t *testing.T) {
		for n := range len(successorSteps) + 1 {
			t.Run(fmt.Sprintf("after %d steps", n), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				e := newFakeSource(t)
				e.cache = make([]byte, 1<<20)
				h := startServer(t, dir, e, func(h *Server) {
					h.limits.settle = retryDelay
					switch n {
					case 0:
						h.limits.hello = retryDelay
					case 3:
						h.limits.piece = 20 * retryDelay
					}
				})
				a := connectFakeSuccessor(t, dir)
				for i, s := range successorSteps[:n] {
					if i > 0 || n == 3 || n >= commits {
						s.do(a)
						continue
					}
					a.say(kindHello, helloHead{Min: 1, Max: 1, PatienceMS: 2000}, nil)
					a.hear(kindHello)
				}
				if n >= commits {
					h.awaitPhase(done)
					e.await("yield")
					return
				}
				if n != 3 { // there it is sending that stops
					if err := a.drain(); !errors.Is(err, errClosed) {
						t.Errorf("the line stays open: %v", err)
					}
				}
				if n > 0 {
					h.awaitPhase(serving)
				}
				p, err := Connect(testContext(t), dir, Config{})
				if p == nil || err != nil {
					t.Fatalf("the next one: %v, %v", p, err)
				}
				p.Close()
				h.awaitPhase(serving)
				e.await()
			})
		}
	})
}

// TestLaterSuccessor: what a later version may send in between is passed over, at each step.
func TestLaterSuccessor(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	a := connectFakeSuccessor(t, dir)
	for i, s := range successorSteps {
		s.do(a)
		for n := range 3 {
			a.raw([]byte{byte(100 + i), 0, 0, 1, 2, 3}, n)
		}
		a.say(messageKind(0), map[string]string{"later": "news"}, nil)
	}
	h.awaitPhase(done)
	<-h.Done()
	e.await("yield")
}

// TestServerVersions: who has no version in common is kept waiting, and takes nobody's place.
func TestServerVersions(t *testing.T) {
	cases := []struct {
		min, max int
		spoken   bool
	}{{1, 1, true}, {0, 1, true}, {1, 9, true}, {-3, 1 << 30, true}, {0, 0, false}, {2, 3, false}, {9, 1, false}, {-1, -1, false}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d-%d", c.min, c.max), func(t *testing.T) {
			noLeak(t)
			dir := t.TempDir()
			h := startServer(t, dir, newFakeSource(t), nil)
			a := connectFakeSuccessor(t, dir)
			a.say(kindHello, helloHead{Min: c.min, Max: c.max}, nil)
			var hi helloHead
			if err := decode(kindHello, a.hear(kindHello).head, &hi); err != nil || hi.Min != minVersion || hi.Max != maxVersion || hi.State != stateOK {
				t.Errorf("%+v, %v", hi, err)
			}
			if c.spoken {
				h.awaitPhase(transferring)
				return
			}
			p, _, _, _ := takeOver(t, dir)
			p.Close()
			h.awaitPhase(serving)
			h.end()
			if m, err := a.receive(); !errors.Is(err, errClosed) {
				t.Errorf("at the old agent's end: %v, %v", m, err)
			}
		})
	}
}

// TestPatience: what a successor says of its time is believed within bounds.
func TestPatience(t *testing.T) {
	dir := t.TempDir()
	for _, ms := range []int64{0, -1, 1, 1 << 62} {
		h := startServer(t, dir, newFakeSource(t), nil)
		a := connectFakeSuccessor(t, dir)
		a.say(kindHello, helloHead{Min: 1, Max: 1, PatienceMS: ms}, nil)
		a.hear(kindHello)
		if ms == 1 {
			h.awaitPhase(serving)
			if h.Stats().Failed != 1 {
				t.Error("not counted")
			}
			continue
		}
		a.say(kindWantCache, nil, nil)
		a.lastPiece()
		h.end()
	}
}

// TestManyConnections: more than are served at a time do not take the successor's place, nor wait for ever.
func TestManyConnections(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	h := startServer(t, dir, newFakeSource(t), nil)
	var crowd []*fakeSuccessor
	for range maxConns {
		a := connectFakeSuccessor(t, dir)
		a.say(kindHello, helloHead{Min: 1, Max: 1, Purpose: purposeWatch}, nil)
		a.hear(kindHello)
		crowd = append(crowd, a)
	}
	a := connectFakeSuccessor(t, dir)
	if m, err := a.receive(); !errors.Is(err, errClosed) {
		t.Errorf("one too many: %v, %v", m, err)
	}
	got := make(chan *Predecessor)
	go func() {
		p, _ := Connect(testContext(t), dir, Config{})
		got <- p
	}()
	for _, a := range crowd {
		a.close()
	}
	p := <-got
	if p == nil {
		t.Fatal("no place when the crowd has gone")
	}
	p.Close()
	h.awaitPhase(serving)
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("%v", left)
	}
}
