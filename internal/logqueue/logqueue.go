// Package logqueue writes log lines from one goroutine, so that callers never wait for the reader of
// the log: a container runtime that is stopped, or a full disk.
//
// Lines wait in a bounded buffer. The writer takes all of them at once, which takes one system call for many
// lines. Lines that find no room are dropped and counted, and a notice says how many where they are missing.
package logqueue

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"
)

const (
	// maxWaiting bounds the lines that wait, in bytes: two seconds of 5,000 logged queries a second, and 100 ms of
	// the most queries that two cores answer and log. The scheduler may keep the writer waiting for so long.
	maxWaiting = 4 << 20
	// bulkPart is the part of maxWaiting that [Queue.Bulk] may use. The rest is left for the agent's own lines.
	bulkPart = 0.75
	// keptBuffer bounds the buffer that an idle Queue keeps.
	keptBuffer = 256 << 10
	// pause is the time between two writes, in which lines gather. The first line after a pause is written
	// at once.
	pause = 5 * time.Millisecond
)

// Queue writes lines to a writer in the order of the calls of Write. It is safe for concurrent use. It has a goroutine
// only while there are lines.
type Queue struct {
	w      io.Writer
	notice func(dropped uint64) []byte
	closed chan struct{}

	mu      sync.Mutex
	waiting []byte
	spare   []byte // the buffer written last
	// missing are the lines dropped since the last notice.
	missing uint64
	stats   Stats
	closing bool
	// running is closed when the goroutine that writes ends; nil: there is none.
	running chan struct{}
}

// Stats says how well a Queue gets rid of its lines.
type Stats struct {
	// Dropped counts the lines that were not written. DroppedAt is when the last one was dropped.
	Dropped   uint64
	DroppedAt time.Time
	// WritingSince is when the write that is under way began; zero: none is.
	WritingSince time.Time
}

// New returns a Queue that writes to w until Close. notice returns the line that says how many lines are missing.
func New(w io.Writer, notice func(dropped uint64) []byte) *Queue {
	return &Queue{w: w, notice: notice, closed: make(chan struct{})}
}

// Write appends one line, or several. It does not wait and never fails; without room it drops the lines.
func (q *Queue) Write(p []byte) (int, error) {
	q.add(p, maxWaiting)
	return len(p), nil
}

// Bulk returns a writer like q for lines that many queries cause. They leave room for other lines.
func (q *Queue) Bulk() io.Writer { return bulk{q} }

type bulk struct{ *Queue }

func (b bulk) Write(p []byte) (int, error) {
	b.add(p, maxWaiting*bulkPart)
	return len(p), nil
}

// add appends p if no more than limit bytes wait then, and starts the goroutine that writes.
func (q *Queue) add(p []byte, limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing || len(q.waiting)+len(p) > limit {
		q.drop(uint64(bytes.Count(p, newline)))
	} else {
		q.waiting = append(q.waiting, p...)
	}
	if q.running == nil && !q.closing {
		q.running = make(chan struct{})
		go q.run(q.running)
	}
}

var newline = []byte{'\n'}

// drop counts n lines that are not written, with q locked.
func (q *Queue) drop(n uint64) {
	if n == 0 {
		return
	}
	q.missing += n
	q.stats.Dropped += n
	q.stats.DroppedAt = time.Now()
}

// Stats returns what q has done so far.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// Close writes the lines that wait, as [Queue.Flush] does, and drops later ones.
func (q *Queue) Close(timeout time.Duration) {
	q.mu.Lock()
	if !q.closing {
		q.closing = true
		close(q.closed)
	}
	q.mu.Unlock()
	q.Flush(timeout)
}

// Flush waits for the lines that wait. It returns when all are written or the writer fails, but after timeout in any
// case.
func (q *Queue) Flush(timeout time.Duration) {
	q.mu.Lock()
	running := q.running
	q.mu.Unlock()
	if running == nil {
		return
	}
	end := time.NewTimer(timeout)
	defer end.Stop()
	select {
	case <-running:
	case <-end.C:
	}
}

// run writes lines until none wait after a pause, or the writer fails. Then it closes ended.
func (q *Queue) run(ended chan struct{}) {
	defer close(ended)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for written := true; ; {
		lines, missing := q.take(!written)
		if len(lines) == 0 {
			return
		}
		written = q.write(lines, missing)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-q.closed:
		}
	}
}

// take returns all lines that wait. The last of them is a notice if others are missing. Without lines the goroutine ends.
// failed says that the last write has failed: then it ends also if there is nothing but a notice, or q is closed.
func (q *Queue) take(failed bool) (lines []byte, missing uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if lines, missing = q.waiting, q.missing; len(lines) == 0 && (missing == 0 || failed) || failed && q.closing {
		q.running = nil
		return nil, 0
	}
	if missing > 0 {
		lines = append(lines, q.notice(missing)...)
	}
	q.waiting, q.spare, q.missing = q.spare[:0], nil, 0
	q.stats.WritingSince = time.Now()
	return lines, missing
}

// write writes lines, and makes their buffer the spare one. What the writer does not take is dropped; missing is what
// the notice in lines says. write reports whether nothing is dropped.
func (q *Queue) write(lines []byte, missing uint64) bool {
	rest := lines
	for len(rest) > 0 {
		n, err := q.w.Write(rest)
		rest = rest[min(max(n, 0), len(rest)):]
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			break
		}
		if len(rest) > 0 { // another process that shares the descriptor has made it non-blocking
			time.Sleep(pause)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stats.WritingSince = time.Time{}
	if cap(lines) <= keptBuffer {
		q.spare = lines[:0]
	}
	dropped := uint64(bytes.Count(rest, newline))
	if dropped > 0 && missing > 0 { // the notice, too, which counts as no line
		q.missing += missing
		dropped--
	}
	q.drop(dropped)
	return len(rest) == 0
}
