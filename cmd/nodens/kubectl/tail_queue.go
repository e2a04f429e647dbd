package kubectl

import (
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// maxTailQueue and maxTailBytes bound the lines that wait to be printed.
	maxTailQueue = 4096
	maxTailBytes = 4 << 20
)

// tailQueue holds the lines of all nodes until they are printed. Its methods are safe for concurrent use, and
// only print blocks.
type tailQueue struct {
	mu     sync.Mutex
	events []TailEvent
	bytes  int
	lost   uint64
	closed bool
	wake   chan struct{} // holds a value after a change
}

func newTailQueue() *tailQueue { return &tailQueue{wake: make(chan struct{}, 1)} }

// put adds a line. If there are too many, it counts the queries of which nobody will know.
func (q *tailQueue) put(e TailEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= maxTailQueue || q.bytes+len(e.JSON) > maxTailBytes {
		switch {
		case e.Line.Query != nil:
			q.lost++
		case e.Line.Lost != nil:
			q.lost += e.Line.Lost.Limit + e.Line.Lost.SlowReader
		}
		return
	}
	q.add(e)
}

// note adds a note. Notes are few, and have room even if lines have not.
func (q *tailQueue) note(node, text string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < 2*maxTailQueue {
		q.add(TailEvent{Node: node, Note: text})
	}
}

// add is for a caller that holds mu.
func (q *tailQueue) add(e TailEvent) {
	q.events = append(q.events, e)
	q.bytes += len(e.JSON)
	q.signal()
}

// close makes print return when it has printed all.
func (q *tailQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// signal wakes print.
func (q *tailQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// print passes all to print until close, or until print returns an error.
func (q *tailQueue) print(print func([]TailEvent, uint64) error) error {
	ticker := time.NewTicker(report.TailHeartbeat)
	defer ticker.Stop()
	for {
		q.mu.Lock()
		events, lost, last := q.events, q.lost, q.closed
		q.events, q.bytes, q.lost = nil, 0, 0
		q.mu.Unlock()
		if len(events) > 0 || lost > 0 {
			if err := print(events, lost); err != nil {
				return err
			}
			continue
		}
		if last {
			return nil
		}
		select {
		case <-q.wake:
		case <-ticker.C:
			if err := print(nil, 0); err != nil {
				return err
			}
		}
	}
}
