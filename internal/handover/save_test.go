// These tests use helloHead and startFakePredecessor, which are not exported.

package handover

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestSave: a successor goes on when its predecessor has saved, or does not come to an end with it.
func TestSave(t *testing.T) {
	for name, hangs := range map[string]bool{"at once": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			noLeak(t)
			dir := t.TempDir()
			e := newFakeSource(t)
			var saved atomic.Int32
			end := make(chan struct{})
			e.save = func() {
				if hangs {
					<-end
				}
				saved.Add(1)
			}
			h := startServer(t, dir, e, func(h *Server) {
				if hangs {
					h.limits.step = 50 * time.Millisecond
				}
			})
			p, err := Connect(testContext(t), dir, Config{})
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			if err := p.Save(testContext(t)); err != nil || saved.Load() == 0 && !hangs {
				t.Errorf("saved %d times, %v", saved.Load(), err)
			}
			close(end)
			_ = p.Close()
			h.end()
		})
	}
}

// TestSaveUnknown: an agent that does not say that it can save is not asked.
func TestSaveUnknown(t *testing.T) {
	dir := t.TempDir()
	startFakePredecessor(t, dir, helloHead{Min: 1, Max: 1, State: stateOK}, "", func(i *fakePredecessor) {
		if m, err := i.receive(); err == nil {
			t.Errorf("it is asked for %d", m.kind)
		}
	})
	p, err := Connect(testContext(t), dir, Config{})
	if err != nil || p == nil {
		t.Fatal(p, err)
	}
	noError(t, p.Save(testContext(t)))
	noError(t, p.Close())
}
