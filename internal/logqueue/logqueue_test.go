package logqueue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/test/testlog"
)

// notice is the notice of the tests.
func notice(dropped uint64) []byte { return fmt.Appendf(nil, "dropped %d\n", dropped) }

// stalled is a writer whose reader reads nothing until it is released.
type stalled struct {
	testlog.Buffer
	release chan struct{}
	writes  atomic.Int64
}

func newStalled() *stalled { return &stalled{release: make(chan struct{})} }

func (s *stalled) Write(p []byte) (int, error) {
	s.writes.Add(1)
	<-s.release
	return s.Buffer.Write(p)
}

// TestOrder: lines of a goroutine keep their order, and many take few writes.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStalled()
		close(w.release)
		q := logqueue.New(w, notice)
		var want strings.Builder
		for i := range 1000 {
			line := fmt.Sprintf("line %d\n", i)
			want.WriteString(line)
			if n, err := io.WriteString(q, line); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
		}
		q.Close(time.Second)
		if got := w.String(); got != want.String() {
			t.Errorf("%d bytes written, want %d in order", len(got), want.Len())
		}
		if n, dropped := w.writes.Load(), q.Stats().Dropped; n > 3 || dropped != 0 {
			t.Errorf("%d writes, %d lines dropped", n, dropped)
		}
	})
}

// TestFirstLine: a line after a silence is written without a delay.
func TestFirstLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStalled()
		close(w.release)
		q := logqueue.New(w, notice)
		defer q.Close(time.Second)
		for i := range 3 {
			before := time.Now()
			_, _ = io.WriteString(q, "line\n")
			synctest.Wait()
			if strings.Count(w.String(), "\n") != i+1 || !time.Now().Equal(before) {
				t.Errorf("after %v: %q", time.Since(before), w.String())
			}
			time.Sleep(time.Second)
		}
	})
}

// TestStalledReader: nobody waits for a reader that has stopped. When it reads again, each line is there or counted, and
// the notice is where lines are missing. Lines that are not queries' have room for longer.
func TestStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStalled()
		q := logqueue.New(w, notice)
		fmt.Fprintf(q, "first\n")
		synctest.Wait() // until it is being written
		text := strings.Repeat("x", 1000)
		const lines = 20_000
		for i := range lines {
			fmt.Fprintf(q.Bulk(), "query %d %s\n", i, text)
		}
		dropped := q.Stats().Dropped
		if dropped == 0 || dropped == lines {
			t.Fatalf("%d lines dropped of %d", dropped, lines)
		}
		fmt.Fprintf(q, "agent\n")
		if n := q.Stats().Dropped; n != dropped {
			t.Errorf("the agent's line was dropped")
		}
		time.Sleep(time.Minute)
		if since := time.Since(q.Stats().WritingSince); since != time.Minute {
			t.Errorf("writing for %v, want 1m", since)
		}
		close(w.release)
		time.Sleep(time.Second)
		fmt.Fprintf(q, "later\n")
		q.Close(time.Second)
		got := strings.Split(w.String(), "\n")
		if want := fmt.Sprintf("dropped %d", dropped); got[len(got)-3] != want || got[len(got)-2] != "later" || got[len(got)-4] != "agent" {
			t.Errorf("the last lines are %q, want %q and later", got[len(got)-4:], want)
		}
		if n := uint64(strings.Count(w.String(), "query")); n+dropped != lines {
			t.Errorf("%d lines written, %d dropped, of %d", n, dropped, lines)
		}
		if !q.Stats().WritingSince.IsZero() {
			t.Error("still writing")
		}
	})
}

// TestClose: the end does not wait for a reader that has stopped, and lines after it are counted.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStalled()
		q := logqueue.New(w, notice)
		fmt.Fprintf(q, "line\n")
		began := time.Now()
		q.Close(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
		fmt.Fprintf(q, "late\n")
		if n := q.Stats().Dropped; n != 1 {
			t.Errorf("%d dropped", n)
		}
		close(w.release)
		q.Close(time.Second)
	})
}

// failing is a writer that fails until it is healed.
type failing struct {
	testlog.Buffer
	mu  sync.Mutex
	err error
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		n, _ := f.Buffer.Write(p[:len(p)/2])
		return n, f.err
	}
	return f.Buffer.Write(p)
}

// TestFailures: lines that a writer refuses (a full disk, a closed pipe) are counted, and the notice follows when it takes
// lines again. A descriptor that is not blocking loses nothing.
func TestFailures(t *testing.T) {
	for err, want := range map[error]uint64{errors.New("no space left"): 2, syscall.EPIPE: 2, syscall.EAGAIN: 0} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := new(failing)
				w.set(err)
				q := logqueue.New(w, notice)
				for range 2 {
					fmt.Fprintf(q, "line that fails\n")
					time.Sleep(time.Second)
				}
				w.set(nil)
				time.Sleep(time.Second)
				fmt.Fprintf(q, "later\n")
				q.Close(time.Second)
				text := w.String()
				if n := q.Stats().Dropped; n != want || strings.Contains(text, "dropped 2\n") != (want > 0) || !strings.Contains(text, "later\n") {
					t.Errorf("%d dropped, written:\n%s", n, text)
				}
			})
		})
	}
}

// TestCloseFails: the end does not wait for a writer that fails.
func TestCloseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(failing)
		w.set(syscall.EPIPE)
		q := logqueue.New(w, notice)
		fmt.Fprintf(q, "line that fails\n")
		began := time.Now()
		q.Close(time.Minute)
		if took := time.Since(began); took > time.Second || q.Stats().Dropped != 1 {
			t.Errorf("took %v, %d dropped", took, q.Stats().Dropped)
		}
	})
}

// TestLongLine: a line that never fits is counted, and noted at once.
func TestLongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStalled()
		close(w.release)
		q := logqueue.New(w, notice)
		_, _ = q.Write(append(bytes.Repeat([]byte("x"), 16<<20), '\n'))
		synctest.Wait()
		if got := w.String(); got != "dropped 1\n" {
			t.Errorf("%.100q", got)
		}
		q.Close(time.Second)
	})
}
