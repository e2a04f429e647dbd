package resolver

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// failuresPerSecond bounds the log lines of a zone whose upstreams are gone: ten
// show what is wrong, and the log of a busy node stays readable.
const failuresPerSecond = 10

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
	// Rules say which; the first that has the name decides.
	Rules []LogRule
	// Plain says that the line is all there is; else the fields come with it.
	Plain bool
	// Local is the address that the zone is asked at; not valid or unspecified where
	// that is one of several.
	Local netip.Addr
}

// LogRule says what is logged of some names.
type LogRule struct {
	// Names are those it is about, and all below them; empty is all.
	Names []wire.Name
	// Success, Denial and Error say which classes of replies are logged.
	Success, Denial, Error bool
	// Format is the line; nil is none but the fields.
	Format *Format
}

// rule is the one that has r logged; nil is none. A nil QueryLog has none.
func (l *QueryLog) rule(r *Request) *LogRule {
	if l == nil {
		return nil
	}
	for i := range l.Rules {
		rule := &l.Rules[i]
		if !rule.names(r.Query.Name()) {
			continue
		}
		if rule.wants(r.kind().class()) {
			return rule
		}
		return nil
	}
	return nil
}

func (r *LogRule) names(qname []byte) bool {
	for _, n := range r.Names {
		if wire.Under(qname, n) {
			return true
		}
	}
	return len(r.Names) == 0
}

func (r *LogRule) wants(c class) bool {
	switch c {
	case success:
		return r.Success
	case denial:
		return r.Denial
	default:
		return r.Error
	}
}

// kind is what a reply comes to, as CoreDNS sorts them.
type kind uint8

const (
	isAnswer kind = iota
	isNoData
	isNoName
	isFailure
	isOther
)

func (k kind) String() string {
	return [...]string{"NOERROR", "NODATA", "NXDOMAIN", "SERVERERROR", "OTHERERROR"}[k]
}

// kind is that of r's reply. An answer without records and without a SOA is not said
// to have none, so that it is one like others; an alias to a name that does not exist
// is neither.
func (r *Request) kind() kind {
	answers := r.reply.Count(wire.Answer) > 0
	switch rcode := r.reply.Rcode(); {
	case r.verdicts&dropped != 0:
		return isOther
	case rcode == wire.NoError && !answers && r.reply.Count(wire.Authority) > 0:
		return isNoData
	case rcode == wire.NoError:
		return isAnswer
	case rcode == wire.NXDomain && !answers:
		return isNoName
	case rcode == wire.ServFail, rcode == wire.NotImp:
		return isFailure
	}
	return isOther
}

// class is one of the values of the log directive's option.
type class uint8

const (
	success class = iota
	denial
	failure
)

func (c class) String() string { return [...]string{"success", "denial", "error"}[c] }

func (k kind) class() class {
	switch k {
	case isAnswer:
		return success
	case isNoData, isNoName:
		return denial
	default:
		return failure
	}
}

// write logs one query with its reply: the line of the rule's format, and the fields
// of CoreDNS's structured log.
func (l *QueryLog) write(rule *LogRule, r *Request, msg []byte) {
	line := "query"
	if rule.Format != nil {
		line = string(rule.Format.line(nil, r, msg, l.Local))
	}
	if l.Plain {
		l.Logger.Info(line)
		return
	}
	rcode := slog.Any("rcode", nil)
	if msg != nil {
		rcode = slog.String("rcode", r.reply.Rcode().String())
	}
	l.Logger.LogAttrs(context.Background(), slog.LevelInfo, line,
		slog.String("client_ip", r.Client.Addr().Unmap().String()), slog.Int("client_port", int(r.Client.Port())),
		slog.String("qname", wire.Name(r.Query.Name()).String()), slog.String("qtype", wire.TypeName(r.Query.Type)), slog.String("qclass", "IN"),
		slog.String("protocol", r.Proto.String()), slog.Int("id", int(r.Query.ID)), slog.Int("opcode", 0),
		slog.Int("request_size", len(r.Query.Packet)), slog.Bool("dnssec_ok", r.Query.DO), slog.Int("bufsize", r.bufsize()),
		rcode, slog.Int("response_size", len(msg)), slog.Float64("duration_seconds", r.Latency.Seconds()))
}
