// Package outage logs outages: one line when something starts to fail, a summary once a
// minute while it fails, and one line when it works again, however often it is retried.
//
// A [Log] belongs to one thing that can fail, such as a connection. Its owner reports each
// failed attempt with [Log.Fail] and the first success with [Log.Recover], and calls
// [Log.Stop] when it stops trying.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// interval is the time between two summaries.
const interval = time.Minute

// Messages are the log messages of one kind of outage.
type Messages struct {
	Start, Ongoing, End string
}

// Log logs the outages of one thing, one after another. Messages, Logger and Level must be
// set before use. It is safe for concurrent use.
type Log struct {
	Messages Messages
	Logger   *slog.Logger
	Level    slog.Level // of all lines but the end; see [Log.Recover]
	// Fields returns further fields of a summary; nil for none. It is called without a lock
	// of the Log, from any goroutine.
	Fields func() []any

	mu      sync.Mutex
	current *outage // nil while there is no outage
}

// outage is one outage.
type outage struct {
	start    time.Time
	failures int
	err      error // of the last attempt
	timer    *time.Timer
}

// Fail reports that an attempt failed with err. If this starts an outage, Fail logs it;
// args are further fields of that line.
func (l *Log) Fail(err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		o := &outage{start: time.Now()}
		o.timer = time.AfterFunc(interval, func() { l.summarize(o) })
		l.current = o
		l.log(l.Level, l.Messages.Start, args, "err", err)
	}
	l.current.failures++
	l.current.err = err
}

// Recover reports a success. If this ends an outage, Recover logs the number of failures
// and the duration; args are further fields of that line. It is an Info line, unless those are
// not logged: whoever reads of the start reads of the end.
func (l *Log) Recover(args ...any) {
	if o := l.end(); o != nil {
		level := slog.LevelInfo
		if !l.Logger.Enabled(context.Background(), level) {
			level = l.Level
		}
		l.log(level, l.Messages.End, args, "failures", o.failures, "duration", o.duration())
	}
}

// Stop ends a current outage without a line.
func (l *Log) Stop() { l.end() }

// end ends and returns the current outage; nil if there is none.
func (l *Log) end() *outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.current
	if o != nil {
		o.timer.Stop()
	}
	l.current = nil
	return o
}

// summarize logs the state of o and starts the timer of the next summary, unless o has
// ended.
func (l *Log) summarize(o *outage) {
	var args []any
	if l.Fields != nil {
		args = l.Fields()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != o {
		return
	}
	l.log(l.Level, l.Messages.Ongoing, args, "failures", o.failures, "duration", o.duration(), "err", o.err)
	o.timer.Reset(interval)
}

func (l *Log) log(level slog.Level, message string, args []any, more ...any) {
	l.Logger.Log(context.Background(), level, message, append(args[:len(args):len(args)], more...)...)
}

// duration returns how long o has lasted, in whole seconds.
func (o *outage) duration() time.Duration { return time.Since(o.start).Round(time.Second) }
