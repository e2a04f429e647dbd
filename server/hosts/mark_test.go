package hosts_test

import (
	"context"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/hosts"
)

// marked is a table with the counters of its copies.
type marked struct {
	*hosts.Table
	epochs *epoch.Table
	words  []atomic.Uint64
}

func newMarked(t *testing.T, cfg config.Hosts) *marked {
	t.Helper()
	const bits = 2
	m := &marked{words: make([]atomic.Uint64, epoch.Words(bits))}
	m.epochs = epoch.New(m.words, 1, bits)
	var err error
	if m.Table, err = hosts.New(&cfg, hosts.Options{Epochs: m.epochs}); err != nil {
		t.Fatal(err)
	}
	return m
}

// isCurrent reports whether a copy with that mark is valid.
func (m *marked) isCurrent(mark epoch.Mark) bool {
	return mark.Index != 0 && m.words[mark.Index-1].Load() == mark.Value
}

// run runs m until end is called.
func (m *marked) run(t *testing.T) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	return func() { stop(); <-done }
}

// replace replaces a file.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestMark: there is a mark while the table runs. It moves when the file has changed, and when the table ends.
func TestMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 5 * time.Second
		path := writeFile(t, "10.0.0.1 a.example")
		m := newMarked(t, config.Hosts{File: path, Reload: every})
		if got := m.Mark(); got.Index != 0 {
			t.Errorf("before it runs, the mark is %+v", got)
		}
		end := m.run(t)
		synctest.Wait()
		first := m.Mark()
		if !m.isCurrent(first) {
			t.Errorf("the mark is %+v", first)
		}
		time.Sleep(every)
		synctest.Wait()
		if got := m.Mark(); got != first || !m.isCurrent(first) {
			t.Errorf("without a change, the mark was %+v and is %+v", first, got)
		}
		replace(t, path, "10.0.0.2 a.example")
		time.Sleep(every)
		synctest.Wait()
		second := m.Mark()
		if m.isCurrent(first) || !m.isCurrent(second) {
			t.Errorf("after a change, the mark was %+v and is %+v", first, second)
		}
		end()
		if got := m.Mark(); m.isCurrent(second) || got.Index != 0 {
			t.Errorf("at the end, the mark was %+v and is %+v", second, got)
		}
		other := m.epochs.AcquireValue()
		if other.Index != first.Index {
			t.Errorf("the counter %d is not free, but %d", first.Index, other.Index)
		}
		if ask(t, m.Table, "a.example", dns.TypeA) == nil {
			t.Error("no answer after the end")
		}
	})
}

// TestMarkWithoutEpochs: without counters there is no mark.
func TestMarkWithoutEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marked{}
		m.Table, _ = newTable(t, config.Hosts{File: writeFile(t, "10.0.0.1 a.example")})
		end := m.run(t)
		synctest.Wait()
		if got := m.Mark(); got.Index != 0 {
			t.Errorf("the mark is %+v", got)
		}
		end()
	})
}

// TestCopiesOfReloads: a copy that was made in the documented order is valid only as long as the records are in use,
// however it falls together with a reload.
func TestCopiesOfReloads(t *testing.T) {
	const reloads = 1_000_000
	m := newMarked(t, config.Hosts{File: writeFile(t, "")})
	end := m.run(t)
	defer end()
	for m.Mark().Index == 0 {
		runtime.Gosched()
	}
	var done atomic.Bool
	go func() {
		defer done.Store(true)
		for i := range reloads {
			m.Publish(i)
		}
	}()
	valid := 0
	for !done.Load() || valid == 0 {
		mark := m.Mark()
		copied := m.Entries()
		now := m.Entries()
		if m.isCurrent(mark) {
			if valid++; copied != now {
				t.Fatalf("a copy of the records %d is valid after the records %d", copied, now)
			}
		}
	}
}
