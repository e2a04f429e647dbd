package resolver

import (
	"cmp"
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

// errUnanswered is why a query failed that no directive has answered.
var errUnanswered = errors.New("no directive of the server block answers the name")

// failure returns why r's reply, which is finished, is an error or incomplete; nil if it is neither.
func (r *Request) failure() error {
	if r.err == nil && r.unanswered && r.reply.Rcode() == wire.ServFail {
		return errUnanswered
	}
	return r.err
}

// coreDNSText returns err in CoreDNS's words, "" if it has none.
func coreDNSText(err error) string {
	if errors.Is(err, errUnanswered) {
		return "no next plugin found"
	}
	return upstream.NetText(err)
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
	text, coreDNS := err.Error(), coreDNSText(err)
	if errors.Is(err, upstream.ErrTimeout) {
		text += ": i/o timeout" // as it ends in CoreDNS
	}
	for _, p := range l.Patterns {
		if p.Match.MatchString(text) || coreDNS != "" && p.Match.MatchString(coreDNS) {
			return p
		}
	}
	return nil
}

// failed logs err, why the query of r failed. limit bounds errors that no consolidation takes.
func (l *ErrorLog) failed(r *Request, err error, limit *limiter) {
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
		l.Logger.Log(context.Background(), level, fmt.Sprintf("plugin/errors: %d %s %s: %s", r.reply.Rcode(), qname, qtype, cmp.Or(coreDNSText(err), err.Error())))
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
