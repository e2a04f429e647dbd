package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// maxTailLine bounds a line of a command, in bytes. A query takes some 500.
	maxTailLine = 64 << 10
	// endTime is how long a command may take to end after its standard input.
	endTime = 2 * time.Second
)

var (
	errSilent   = errors.New("nothing received")
	errLongLine = fmt.Errorf("a line of more than %d KiB", maxTailLine>>10)
)

// keepAlive writes to w again and again until ctx ends.
func keepAlive(ctx context.Context, w io.Writer, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if _, err := io.WriteString(w, "\n"); err != nil {
				return
			}
		}
	}
}

// lineWriter calls each with every line that is written, which is valid until each returns. It calls full once
// a line is too long, and then ignores the rest.
type lineWriter struct {
	each  func(line []byte)
	full  func()
	part  []byte // of a line
	lines atomic.Int64
	cut   bool
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for !w.cut && len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if p = rest; len(w.part)+len(line) > maxTailLine {
			w.cut = true
			w.full()
			break
		}
		w.part = append(w.part, line...)
		if whole {
			w.lines.Add(1)
			w.each(w.part)
			w.part = w.part[:0]
		}
	}
	return n, nil
}

// lastBytes keeps the last errorBytes that are written. It is safe for concurrent use.
type lastBytes struct {
	mu   sync.Mutex
	kept []byte
}

func (b *lastBytes) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, p...)
	b.kept = b.kept[max(0, len(b.kept)-errorBytes):]
	return len(p), nil
}

func (b *lastBytes) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = nil
}

func (b *lastBytes) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.kept)
}

// nodeLines puts the lines of a node into the queue.
type nodeLines struct {
	node     string
	queue    *tailQueue
	again    bool // the user knows that there was none
	answered atomic.Bool
	instance string // of the agent
}

// noteAgent notes that the node answers again, or that it has another agent.
func (n *nodeLines) noteAgent(instance string) {
	switch first := !n.answered.Swap(true); {
	case first && n.again:
		n.queue.note(n.node, "answers again")
	case !first && instance != n.instance:
		n.queue.note(n.node, "another agent serves it now")
	}
	n.instance = instance
}

// add takes a line.
func (n *nodeLines) add(text []byte) error {
	l := new(report.TailLine)
	if err := report.Unmarshal(text, l); err != nil {
		return fmt.Errorf("the reply is not valid: %w", err)
	}
	if l.SchemaVersion != report.SchemaVersion {
		return fmt.Errorf("the reply has the schema version %d, and this program knows %d; use the program of the agent's version", l.SchemaVersion, report.SchemaVersion)
	}
	n.noteAgent(l.Instance)
	if l.Selected == nil && l.Query == nil && l.Lost == nil {
		return nil
	}
	if l.Node != n.node {
		l.Node = n.node
		var err error
		if text, err = json.Marshal(l); err != nil {
			return err
		}
	}
	n.queue.put(TailEvent{Node: n.node, Line: l, JSON: bytes.Clone(text)})
	return nil
}
