package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// ErrorLog is where a zone's failed queries are logged. It is safe for concurrent use.
type ErrorLog struct {
	Logger *slog.Logger
	// Plain says that the line is all there is, as CoreDNS writes it; else there are
	// fields.
	Plain bool
	// Patterns are the errors that are logged together, the first that matches.
	Patterns []*Consolidation
}

// Consolidation is a kind of error of which there is one line for all of a period. It is safe
// for concurrent use. It may hold a timer until [Consolidation.Stop].
type Consolidation struct {
	Logger    *slog.Logger
	Level     slog.Level
	Period    time.Duration
	Match     *regexp.Regexp
	ShowFirst bool // by itself

	count   atomic.Uint32
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// take counts one error and reports whether it is still to be logged by itself.
func (p *Consolidation) take() (alone bool) {
	if p.count.Add(1) > 1 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.count.Store(0)
		return true
	}
	p.timer = time.AfterFunc(p.Period, p.flush)
	return p.ShowFirst
}

// flush logs how many there were in the period that ends now.
func (p *Consolidation) flush() {
	n := p.count.Swap(0)
	if n == 0 || n == 1 && p.ShowFirst {
		return
	}
	p.Logger.Log(context.Background(), p.Level, fmt.Sprintf("plugin/errors: %d errors like '%s' occurred in last %s", n, p.Match, p.Period))
}

// Stop logs what has been counted; errors that come later are logged by themselves.
func (p *Consolidation) Stop() {
	p.mu.Lock()
	p.stopped = true
	pending := p.timer != nil && p.timer.Stop()
	p.mu.Unlock()
	if pending {
		p.flush()
	}
}

// matching is the pattern that takes err, nil if none does.
func (l *ErrorLog) matching(err error) *Consolidation {
	if len(l.Patterns) == 0 {
		return nil
	}
	text := err.Error()
	if errors.Is(err, upstream.ErrTimeout) {
		text += ": i/o timeout" // as it ends in CoreDNS, which patterns are written for
	}
	for _, p := range l.Patterns {
		if p.Match.MatchString(text) {
			return p
		}
	}
	return nil
}

// failed logs that r ended with an error. Errors of no pattern are bounded by the zone's
// limiter.
func (l *ErrorLog) failed(r *Request, limit *limiter) {
	err := r.err
	level, missed := slog.LevelError, int64(0)
	if p := l.matching(err); p != nil {
		if !p.take() {
			return
		}
		level = p.Level
	} else {
		var ok bool
		if ok, missed = limit.allow(r.Arrival, failuresPerSecond); !ok {
			return
		}
	}
	qname, qtype := wire.Name(r.Query.Name()).String(), wire.TypeName(r.Query.Type)
	if l.Plain {
		l.Logger.Log(context.Background(), level, fmt.Sprintf("plugin/errors: %d %s %s: %v", r.reply.Rcode(), qname, qtype, err))
		return
	}
	l.Logger.Log(context.Background(), level, "query failed", "zone", r.zone.Name.String(), "qname", qname, "qtype", qtype, "client", r.Client, "err", err, "unlogged", missed)
}
