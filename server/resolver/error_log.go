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

// ErrorLog logs a zone's failed queries. It is safe for concurrent use.
type ErrorLog struct {
	Logger *slog.Logger
	// Plain says that each line is text as in CoreDNS, without fields.
	Plain bool
	// Patterns consolidate errors; the first that matches takes the error.
	Patterns []*Consolidation
}

// Consolidation logs one line for all errors of a kind in a period. It is safe for concurrent
// use. It may hold a timer until [Consolidation.Stop].
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

// take counts one error and reports whether the caller is to log it by itself.
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

// flush logs the number of errors in the period that ends now.
func (p *Consolidation) flush() {
	n := p.count.Swap(0)
	if n == 0 || n == 1 && p.ShowFirst {
		return
	}
	p.Logger.Log(context.Background(), p.Level, fmt.Sprintf("plugin/errors: %d errors like '%s' occurred in last %s", n, p.Match, p.Period))
}

// Stop logs the errors counted so far; later ones are logged by themselves.
func (p *Consolidation) Stop() {
	p.mu.Lock()
	p.stopped = true
	pending := p.timer != nil && p.timer.Stop()
	p.mu.Unlock()
	if pending {
		p.flush()
	}
}

// matching returns the consolidation that takes err, nil for none: the first whose pattern matches the error as it is
// logged, or as CoreDNS logs it.
func (l *ErrorLog) matching(err error) *Consolidation {
	if len(l.Patterns) == 0 {
		return nil
	}
	text, netText := err.Error(), upstream.NetText(err)
	if errors.Is(err, upstream.ErrTimeout) {
		text += ": i/o timeout" // as it ends in CoreDNS
	}
	for _, p := range l.Patterns {
		if p.Match.MatchString(text) || netText != "" && p.Match.MatchString(netText) {
			return p
		}
	}
	return nil
}

// failed logs the error of r. limit bounds errors that no consolidation takes.
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

// Stop stops the timers of l's patterns.
func (l *ErrorLog) Stop() {
	for _, p := range l.Patterns {
		p.Stop()
	}
}
