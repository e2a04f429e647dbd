package app

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// keptFaults is the number of warnings and errors that /status shows.
	keptFaults = 20
	// maxFaultText bounds the message of one, and its fields, in bytes.
	maxFaultText = 512
)

// faultRing has the last warnings and errors of the log. The zero value is ready for use. It is safe
// for concurrent use.
type faultRing struct {
	mu   sync.Mutex
	list [keptFaults]report.Fault
	n    int // that have been added
}

func (r *faultRing) add(f report.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list[r.n%keptFaults] = f
	r.n++
}

// faults returns them, the newest last.
func (r *faultRing) faults() []report.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]report.Fault, 0, keptFaults)
	for i := max(0, r.n-keptFaults); i < r.n; i++ {
		out = append(out, r.list[i%keptFaults])
	}
	return out
}

// faultHandler adds warnings and errors to a ring, and passes all records on.
type faultHandler struct {
	slog.Handler
	queries slog.Handler // for lines about queries
	ring    *faultRing
	fields  string // of With, each with a space before it
}

// keepFaults returns a logger like log whose warnings and errors r keeps.
func (r *faultRing) keepFaults(log *agentLog) *slog.Logger {
	return slog.New(&faultHandler{Handler: log.Handler(), queries: log.queries.Handler(), ring: r})
}

// queryLogger returns the logger for lines about queries that belongs to log, which [faultRing.keepFaults] has
// returned. The ring does not keep them: they say nothing about the agent.
func queryLogger(log *slog.Logger) *slog.Logger {
	if h, ok := log.Handler().(*faultHandler); ok {
		return slog.New(h.queries)
	}
	return log
}

func (h *faultHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		fields := h.fields
		r.Attrs(func(a slog.Attr) bool {
			fields += formatAttr(a)
			return len(fields) <= maxFaultText
		})
		level := "warn"
		if r.Level >= slog.LevelError {
			level = "error"
		}
		h.ring.add(report.Fault{
			Time: r.Time.UTC(), Level: level, Message: cut(r.Message), Fields: cut(strings.TrimSpace(fields)),
		})
	}
	return h.Handler.Handle(ctx, r)
}

// cut returns at most maxFaultText bytes of text, on one line.
func cut(text string) string {
	if len(text) > maxFaultText {
		text = strings.ToValidUTF8(text[:maxFaultText], "") + "…"
	}
	return printable(text)
}

func (h *faultHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := &faultHandler{Handler: h.Handler.WithAttrs(attrs), queries: h.queries, ring: h.ring, fields: h.fields}
	for _, a := range attrs {
		more.fields += formatAttr(a)
	}
	return more
}

// WithGroup passes the group on, which the ring ignores: this program does not use groups.
func (h *faultHandler) WithGroup(name string) slog.Handler {
	return &faultHandler{Handler: h.Handler.WithGroup(name), queries: h.queries, ring: h.ring, fields: h.fields}
}
