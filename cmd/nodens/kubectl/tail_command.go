package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
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

// follow runs nodens in a pod and calls each with every line of its output until ctx ends, each returns an
// error, or the command ends. The command in the pod ends with its standard input: kubectl closes it when
// it ends, and no keepalive arrives if the network is cut. Each side takes the other one to be cut off after silence
// without a line. The error is never nil.
func (c *Cluster) follow(ctx context.Context, pod string, args []string, silence time.Duration, each func(line []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.Timeout, func() { cancel(errSilent) })
	defer timer.Stop()
	stderr := new(lastBytes)
	stdout := &lineWriter{full: func() { cancel(errLongLine) }, each: func(line []byte) {
		timer.Reset(silence)
		stderr.reset() // what is said before a line is not why the command ends
		if err := each(line); err != nil {
			cancel(err)
		}
	}}
	command := append(append(c.flags(), "exec", pod, "--stdin", "--", "nodens"), args...)
	cmd := exec.CommandContext(ctx, "kubectl", append(command, "--stdin-timeout", silence.String())...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, stderr, endTime
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = func() error { _ = stdin.Close(); return nil }
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running kubectl: %w", err)
	}
	go keepAlive(ctx, stdin, silence/6)
	err = cmd.Wait()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent) && stdout.lines.Load() == 0:
		return fmt.Errorf("no answer in %s", c.Timeout)
	case errors.Is(cause, errSilent):
		return fmt.Errorf("%w for %s", cause, silence)
	case cause != nil:
		return cause
	case err != nil:
		return errors.New(lastLine(stderr.text(), err.Error()))
	}
	return errors.New("the command has ended")
}

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
