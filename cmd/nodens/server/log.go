package server

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// failuresPerSecond bounds the log lines of a zone whose upstreams are gone: ten
// show what is wrong, and the log of a busy node stays readable.
const failuresPerSecond = 10

func (z *Zone) logFailure(x *exchange, err error) {
	ok, missed := z.failed.allow(x.start, failuresPerSecond)
	if !ok {
		return
	}
	z.Errors.Error("query failed", "qname", wire.Name(x.q.Name()).String(), "qtype", wire.TypeName(x.q.Type),
		"client", x.client, "err", err, "unlogged", missed)
}

// limiter lets a number of events through each second. It is safe for concurrent
// use; at the turn of a second it may let a few more through.
type limiter struct {
	second, n, missed atomic.Int64
}

// allow reports whether the event at now may pass, and how many before it did
// not.
func (l *limiter) allow(now time.Duration, perSecond int64) (ok bool, missed int64) {
	if s := int64(now / time.Second); l.second.Swap(s) != s {
		l.n.Store(0)
	}
	if l.n.Add(1) > perSecond {
		l.missed.Add(1)
		return false, 0
	}
	return true, l.missed.Swap(0)
}

// QueryLog is where a zone's queries are logged.
type QueryLog struct {
	Logger *slog.Logger
	// Names are the names whose queries, and those below them, are logged;
	// empty is all.
	Names []wire.Name
	// Success, Denial and Error say which classes of replies are logged.
	Success, Denial, Error bool
}

// takes reports whether a query with this outcome is logged. A nil QueryLog
// takes none.
func (l *QueryLog) takes(q *wire.Query, rcode wire.Rcode, answers int) bool {
	if l == nil {
		return false
	}
	wanted := l.Error
	switch {
	case rcode == wire.NoError && answers > 0:
		wanted = l.Success
	case rcode == wire.NoError, rcode == wire.NXDomain:
		wanted = l.Denial
	}
	if !wanted {
		return false
	}
	for _, n := range l.Names {
		if wire.Under(q.Name(), n) {
			return true
		}
	}
	return len(l.Names) == 0
}

// write logs one query with the fields of CoreDNS's common log format.
func (l *QueryLog) write(x *exchange, size int) {
	l.Logger.Info("query", "client", x.client, "id", x.q.ID, "qname", wire.Name(x.q.Name()).String(),
		"qtype", wire.TypeName(x.q.Type), "proto", x.via.String(), "size", len(x.q.Packet), "do", x.q.DO,
		"bufsize", x.q.Limit(), "rcode", x.r.Rcode().String(), "rsize", size, "duration", x.took)
}
