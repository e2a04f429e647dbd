// These tests use awaitPhase, fakeSuccessor and timeouts, which are not exported.

package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// worse is a reason to give back.
var worse = Reason{Text: "servfail in a.", Kinds: []string{"servfail", "latency"}}

// compared is a successor that has taken over and compares itself.
func compared(t testing.TB, dir, identity string) *Predecessor {
	t.Helper()
	p, err := connectCompared(t, dir, identity)
	if err != nil || p == nil {
		t.Fatalf("Connect: %v, %v", p, err)
	}
	noError(t, p.Commit(testContext(t), func(c Conn) { c.File.Close() }))
	p.Settled()
	p.Alive()
	return p
}

func connectCompared(t testing.TB, dir, identity string) (*Predecessor, error) {
	p, err := Connect(testContext(t), dir, Config{Version: "new", Logger: logger(t), Compare: true, Identity: identity})
	if p != nil {
		t.Cleanup(func() { p.Close() })
	}
	return p, err
}

// TestReturn: what a successor gives back is complete, and it does not get the node again.
func TestReturn(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	old, next := newFakeSource(t), newFakeSource(t)
	old.statistics = []byte("what it has measured")
	next.cache, next.conns = bytes.Repeat([]byte("newer answers "), 9_999), 5
	h := startServer(t, dir, old, nil)
	p, err := connectCompared(t, dir, "next")
	noError(t, err)
	if !p.Comparable() {
		t.Error("the predecessor is not comparable")
	}
	if got, err := p.Statistics(testContext(t)); string(got) != string(old.statistics) || err != nil {
		t.Errorf("statistics %q, %v", got, err)
	}
	noError(t, p.Commit(testContext(t), func(c Conn) { c.File.Close() }))
	p.Settled()
	h.awaitPhase(done)
	noError(t, p.Return(testContext(t), next, worse))
	h.awaitPhase(serving)
	old.await("yield", "cache", "read", "resume")
	next.await("yield")
	if !bytes.Equal(old.returned, next.cache) || old.adopted != next.conns {
		t.Errorf("%d bytes of cache and %d connections, want %d and %d", len(old.returned), old.adopted, len(next.cache), next.conns)
	}
	select {
	case <-h.Done():
		t.Error("the old agent may end")
	default:
	}
	if s := h.Stats(); s != (Stats{Completed: 1, Returned: 1}) {
		t.Errorf("%+v", s)
	}
	reason, kinds := h.TakenBack()
	if diff := cmp.Diff(map[string]uint64{"servfail": 1, "latency": 1}, kinds); reason != worse.Text || diff != "" {
		t.Errorf("taken back: %q, (-want +got):\n%s", reason, diff)
	}

	if _, err := connectCompared(t, dir, "next"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), worse.Text) {
		t.Errorf("the same agent again: %v", err)
	}
	if s := h.Stats(); s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	for _, c := range []Config{{Compare: true, Identity: "another"}, {Compare: true}, {Identity: "next"}} {
		p, err := Connect(testContext(t), dir, c)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		p.Close()
		h.awaitPhase(serving)
	}
}

// TestReturnStopped: a successor that gives back because it is stopped may take over again.
func TestReturnStopped(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	old := newFakeSource(t)
	h := startServer(t, dir, old, nil)
	for range 2 {
		noError(t, compared(t, dir, "next").Return(testContext(t), newFakeSource(t), Reason{Text: "stopped"}))
		h.awaitPhase(serving)
	}
	if reason, kinds := h.TakenBack(); reason != "" || len(kinds) > 0 {
		t.Errorf("taken back: %q, %v", reason, kinds)
	}
	old.await("yield", "cache", "read", "resume", "yield", "cache", "read", "resume")
}

// returnSteps are the way of a successor that gives back, after its hand-over.
var returnSteps = []struct {
	name string
	do   func(a *fakeSuccessor)
}{
	{"return", func(a *fakeSuccessor) {
		a.say(kindReturn, map[string]any{"reason": "worse", "kinds": []string{"servfail"}, "new": 1}, []byte("rest"))
		a.hear(kindWantCache)
	}},
	{"half of the cache", func(a *fakeSuccessor) { a.say(kindCache, nil, []byte("half")) }},
	{"the other half", func(a *fakeSuccessor) {
		a.say(kindCache, cacheHead{End: true}, []byte("half"))
		a.hear(kindCommit)
	}},
	{"committed", func(a *fakeSuccessor) { a.say(kindCommitted, nil, nil) }},
	{"a connection", func(a *fakeSuccessor) {
		f := pipeFile(a.t)
		defer f.Close()
		a.say(kindConnection, connHead{Addr: "here"}, nil, f)
	}},
}

// TestSuccessorFailsToReturn: whatever a successor does while it gives back, the old agent serves,
// refuses it, and hands over to the next one.
func TestSuccessorFailsToReturn(t *testing.T) {
	faults := []struct {
		name string
		do   func(a *fakeSuccessor)
	}{
		{"closes", func(a *fakeSuccessor) { a.close() }},
		{"one byte", func(a *fakeSuccessor) { a.raw([]byte{9}, 2) }},
		{"unknown messages", func(a *fakeSuccessor) {
			for range maxSkipped + 1 {
				a.say(messageKind(201), nil, nil)
			}
		}},
		{"stalls", func(a *fakeSuccessor) {}},
		{"reports a fault", func(a *fakeSuccessor) { a.say(kindCache, cacheHead{Fault: "broken"}, nil) }},
		{"returns again", func(a *fakeSuccessor) { a.say(kindReturn, nil, nil) }},
		{"keeps", func(a *fakeSuccessor) { a.say(kindKept, nil, nil); a.close() }},
	}
	for n := 1; n <= len(returnSteps); n++ {
		for _, f := range faults {
			t.Run("after "+returnSteps[n-1].name+"/"+f.name, func(t *testing.T) {
				noLeak(t)
				dir := shortDir(t)
				e := newFakeSource(t)
				h := startServer(t, dir, e, func(h *Server) {
					limit := 5 * retryDelay // what is done in time must not look late on a busy machine
					h.limits.piece, h.limits.back, h.limits.drain, h.limits.step = limit, 2*limit, retryDelay, limit
				})
				a := connectFakeSuccessor(t, dir)
				a.say(kindHello, helloHead{Min: 1, Max: 1, Compare: true, Identity: "next"}, nil)
				a.hear(kindHello)
				a.say(kindCommit, nil, nil)
				a.hear(kindYielded)
				a.say(kindSettled, nil, nil)
				h.awaitPhase(done)
				for _, s := range returnSteps[:n] {
					s.do(a)
				}
				f.do(a)
				h.awaitPhase(serving)
				e.await("yield", "cache", "read", "resume")
				if s := h.Stats(); s.Returned != 1 {
					t.Errorf("%+v", s)
				}
				if _, err := connectCompared(t, dir, "next"); !errors.Is(err, ErrRefused) {
					t.Errorf("the same agent again: %v", err)
				}
				p, _, _, _ := takeOver(t, dir)
				p.Settled()
				h.awaitPhase(done)
			})
		}
	}
}

// TestPredecessorFailsToTakeBack: if the old agent ends while it takes back, the successor serves; if
// it resumes by itself or hangs, the successor ends.
func TestPredecessorFailsToTakeBack(t *testing.T) {
	steps := []struct {
		name string
		do   func(*fakePredecessor)
	}{
		{"return", func(i *fakePredecessor) { _, _ = i.await(kindReturn) }},
		{"cache", func(i *fakePredecessor) { i.say(kindWantCache, nil, nil); i.lastPiece() }},
		{"commit", func(i *fakePredecessor) { i.say(kindCommit, nil, nil); i.hear(kindCommitted) }},
		{"yielded", func(i *fakePredecessor) { i.hear(kindYielded) }},
	}
	const commit = 3 // from there on the successor does not read any more
	faults := []struct {
		name string
		do   func(*fakePredecessor)
		want error // nil: none that is ErrGone
	}{
		{"ends", func(i *fakePredecessor) { i.close() }, ErrGone},
		{"resumes", func(i *fakePredecessor) { i.say(kindResumed, reasonHead{Reason: "late"}, nil); i.close() }, nil},
		{"hangs", func(i *fakePredecessor) {}, nil},
		{"unknown messages", func(i *fakePredecessor) {
			for range maxSkipped {
				i.say(messageKind(201), nil, nil)
			}
			i.close()
		}, ErrGone},
	}
	for n := 1; n <= len(steps); n++ {
		for _, f := range faults {
			t.Run("after "+steps[n-1].name+"/"+f.name, func(t *testing.T) {
				noLeak(t)
				dir, played := shortDir(t), make(chan struct{})
				startFakePredecessor(t, dir, helloHead{Min: 1, Max: 1, State: stateOK, Compare: true}, stateOK, func(i *fakePredecessor) {
					defer close(played)
					_, _ = i.await(kindCommit)
					i.say(kindCommitted, nil, nil)
					i.say(kindYielded, nil, nil)
					for _, s := range steps[:n] {
						s.do(i)
					}
					f.do(i)
				})
				p := compared(t, dir, "next")
				switch {
				case f.name == "hangs" && n < commit:
					p.limits.piece = retryDelay
				case f.name == "hangs":
					p.limits.step = 3 * retryDelay
				default:
					p.limits.step = patience
				}
				e := newFakeSource(t)
				err := p.Return(testContext(t), e, worse)
				if errors.Is(err, ErrGone) != (f.want != nil) {
					t.Errorf("Return: %v", err)
				}
				switch {
				case n < commit:
					e.await()
				case f.want != nil:
					e.await("yield", "resume")
				default:
					e.await("yield")
				}
				p.Close()
				<-played
			})
		}
	}
}

// TestEarlierPredecessor: an agent of an earlier version can't be compared with.
func TestEarlierPredecessor(t *testing.T) {
	dir := shortDir(t)
	startFakePredecessor(t, dir, helloHead{Min: 1, Max: 1, State: stateOK}, "", func(*fakePredecessor) {})
	p, err := connectCompared(t, dir, "next")
	noError(t, err)
	if p.Comparable() {
		t.Error("it is comparable")
	}
}

// TestHang: the old agent resumes when its successor stops to say that it works.
func TestHang(t *testing.T) {
	noLeak(t)
	dir := shortDir(t)
	e := newFakeSource(t)
	h := startServer(t, dir, e, func(h *Server) { h.limits.alive = 3 * retryDelay })
	p := compared(t, dir, "next")
	for range 20 {
		p.Alive()
	}
	h.awaitPhase(serving)
	<-p.Gone()
	if reason := p.Resumed(); !strings.Contains(reason, "did not respond") {
		t.Errorf("resumed: %q", reason)
	}
	if _, kinds := h.TakenBack(); kinds[KindHang] != 1 {
		t.Errorf("taken back: %v", kinds)
	}
	if _, err := connectCompared(t, dir, "next"); !errors.Is(err, ErrRefused) {
		t.Errorf("the same agent again: %v", err)
	}
	e.await("yield", "resume")
}

// TestKeep: only when its successor keeps everything, the old agent frees its memory and may end. If
// the successor ends later, the old agent resumes and does not refuse it.
func TestKeep(t *testing.T) {
	noLeak(t)
	dir := shortDir(t)
	e := newFakeSource(t)
	h := startServer(t, dir, e, func(h *Server) { h.limits.alive = patience })
	p := compared(t, dir, "next")
	h.awaitPhase(done)
	select {
	case <-h.Done():
		t.Error("the old agent may end while its successor compares itself")
	default:
	}
	e.await("yield")
	p.Keep()
	<-h.Done()
	e.await("yield", "release")
	p.Close()
	h.awaitPhase(serving)
	e.await("yield", "release", "resume")
	p, err := connectCompared(t, dir, "next")
	noError(t, err)
	p.Close()
}

// TestSuccessorEndsWhileComparing: it is refused afterwards.
func TestSuccessorEndsWhileComparing(t *testing.T) {
	noLeak(t)
	dir := shortDir(t)
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	p := compared(t, dir, "next")
	h.awaitPhase(done)
	p.Close()
	h.awaitPhase(serving)
	e.await("yield", "resume")
	if _, kinds := h.TakenBack(); kinds[KindEnded] != 1 {
		t.Errorf("taken back: %v", kinds)
	}
	if _, err := connectCompared(t, dir, "next"); !errors.Is(err, ErrRefused) {
		t.Errorf("the same agent again: %v", err)
	}
}

// TestStoppedWhileComparing: an old agent that is being stopped takes nothing back, and its successor
// keeps serving.
func TestStoppedWhileComparing(t *testing.T) {
	noLeak(t)
	dir := shortDir(t)
	e := newFakeSource(t)
	h := startServer(t, dir, e, nil)
	p := compared(t, dir, "next")
	h.awaitPhase(done)
	if !h.Stop(testContext(t)) {
		t.Error("Stop after a hand-over says that there was none")
	}
	s := newFakeSource(t)
	if err := p.Return(testContext(t), s, worse); !errors.Is(err, ErrGone) {
		t.Errorf("Return: %v", err)
	}
	s.await()
	e.await("yield")
}

// TestContinue: an agent that can't give back hands over to others again.
func TestContinue(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	h := startServer(t, dir, newFakeSource(t), nil)
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if h.Stop(now) {
		t.Error("Stop says that a successor serves")
	}
	h.Continue()
	p, _, _, _ := takeOver(t, dir)
	p.Settled()
	h.awaitPhase(done)
}

// TestRefusalsBounded: the oldest identity is forgotten, and kinds are bounded.
func TestRefusalsBounded(t *testing.T) {
	h := &Server{}
	for i := range maxRefusals + 1 {
		h.refuseLater(fmt.Sprint(i), reasonHead{Reason: strings.Repeat("x", 10*maxText), Kinds: []string{fmt.Sprint("kind ", i), "same"}})
	}
	if h.refusals.of(helloHead{Compare: true, Identity: "0"}) != "" || h.refusals.of(helloHead{Compare: true, Identity: "1"}) == "" {
		t.Error("not the oldest one was forgotten")
	}
	reason, kinds := h.TakenBack()
	if len(kinds) > maxKinds || kinds["same"] != maxRefusals+1 || len(reason) > maxText+len("…") {
		t.Errorf("%d bytes, %v", len(reason), kinds)
	}
}

// TestLongStatistics: statistics that don't fit into a message are left out.
func TestLongStatistics(t *testing.T) {
	dir := t.TempDir()
	e := newFakeSource(t)
	e.statistics = make([]byte, maxRest+1)
	startServer(t, dir, e, nil)
	p, err := connectCompared(t, dir, "")
	noError(t, err)
	if got, err := p.Statistics(testContext(t)); len(got) > 0 || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
