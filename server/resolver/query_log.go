package resolver

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// failuresPerSecond bounds the error lines of a zone. Ten show what is wrong, and the log stays
// readable.
const failuresPerSecond = 10

// limiter lets a number of events pass each second. It is safe for concurrent use; when a
// second begins it may let a few more pass.
type limiter struct {
	second, n, missed atomic.Int64
}

// allow reports whether the event at now may pass, and how many before it did not.
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

// QueryLog logs a zone's queries.
type QueryLog struct {
	Logger *slog.Logger
	// Rules select the queries; the first rule with the name decides.
	Rules []LogRule
	// Plain says that each line is only text, without fields.
	Plain bool
	// Local is the address of the listener, for {local}. It is invalid or unspecified if there
	// are several.
	Local netip.Addr
}

// LogRule selects what is logged for some names.
type LogRule struct {
	// Names are the names of the rule, and all names below them; empty is all names.
	Names []wire.Name
	// Success, Denial and Error are the classes of replies that are logged.
	Success, Denial, Error bool
	// Format is the text of the line; nil leaves it to the fields.
	Format *Format
	// Slow is the least latency of queries that have a line in any case; 0 is none. Without Sample and
	// Aggregate others are not logged.
	Slow time.Duration
	// Sample says that one in so many of the other queries is chosen; 0 and 1 are all.
	Sample int
	// Aggregate counts the chosen queries; nil: each has a line.
	Aggregate *Aggregate
}

// Stop logs what the rules have counted. Later queries are not counted. A nil QueryLog does nothing.
func (l *QueryLog) Stop() {
	if l == nil {
		return
	}
	for i := range l.Rules {
		if a := l.Rules[i].Aggregate; a != nil {
			a.Stop()
		}
	}
}

// rule returns the rule that has r logged, nil for none. A nil QueryLog has none.
func (l *QueryLog) rule(r *Request) *LogRule {
	if l == nil {
		return nil
	}
	for i := range l.Rules {
		rule := &l.Rules[i]
		if !rule.names(r.Query.Name()) {
			continue
		}
		if rule.wants(r.kind().class()) && rule.chooses(r.Latency) {
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

// slow reports whether a query is logged because it took so long.
func (r *LogRule) slow(latency time.Duration) bool { return r.Slow > 0 && latency >= r.Slow }

// chooses reports whether a query that took so long is logged or counted. The choice of a sample is random:
// resolvers ask in patterns, such as A before AAAA.
func (r *LogRule) chooses(latency time.Duration) bool {
	switch {
	case r.slow(latency):
		return true
	case r.Sample > 1:
		return rand.N(r.Sample) == 0 //nolint:gosec // a sample needs no secret
	}
	return r.Slow == 0 || r.Sample == 1 || r.Aggregate != nil
}

// kind is the type of a reply in CoreDNS.
type kind uint8

const (
	isAnswer kind = iota
	isReferral
	isNoData
	isNoName
	isFailure
	isOther
)

func (k kind) String() string {
	return [...]string{"NOERROR", "DELEGATION", "NODATA", "NXDOMAIN", "SERVERERROR", "OTHERERROR"}[k]
}

// kind returns the kind of r's reply. An alias to a name that does not exist is neither an answer nor a denial.
func (r *Request) kind() kind {
	answers := r.reply.Count(wire.Answer) > 0
	switch rcode := r.reply.Rcode(); {
	case r.Dropped():
		return isOther
	case rcode == wire.NoError && !answers:
		return r.emptyKind()
	case rcode == wire.NoError:
		return isAnswer
	case rcode == wire.NXDomain && !answers:
		return isNoName
	case rcode == wire.ServFail, rcode == wire.NotImp:
		return isFailure
	}
	return isOther
}

// emptyKind returns the kind of r's reply, which is NOERROR without answers. Without SOA and NS records it is an answer.
func (r *Request) emptyKind() kind {
	if _, denies := r.reply.FirstTTL(wire.Authority, wire.TypeSOA); denies {
		return isNoData
	}
	if _, refers := r.reply.FirstTTL(wire.Authority, wire.TypeNS); refers {
		return isReferral
	}
	return isAnswer
}

// class is a value of the log directive's option class.
type class uint8

const (
	success class = iota
	denial
	failure
)

func (c class) String() string { return [...]string{"success", "denial", "error"}[c] }

func (k kind) class() class {
	switch k {
	case isAnswer, isReferral:
		return success
	case isNoData, isNoName:
		return denial
	default:
		return failure
	}
}

// write logs r and its reply: the text of the rule's format, the fields of CoreDNS's
// structured log, and what else is known of r.
func (l *QueryLog) write(rule *LogRule, r *Request, msg []byte) {
	if rule.Aggregate != nil && !rule.slow(r.Latency) {
		rule.Aggregate.add(r, msg != nil)
		return
	}
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
	attrs := []slog.Attr{
		slog.String("client_ip", r.Client.Addr().Unmap().String()), slog.Int("client_port", int(r.Client.Port())),
		slog.String("qname", wire.Name(r.Query.Name()).String()), slog.String("qtype", wire.TypeName(r.Query.Type)), slog.String("qclass", "IN"),
		slog.String("protocol", r.Proto.String()), slog.Int("id", int(r.Query.ID)), slog.Int("opcode", 0),
		slog.Int("request_size", len(r.Query.Packet)), slog.Bool("dnssec_ok", r.Query.DO), slog.Int("bufsize", r.bufsize()),
		rcode, slog.Int("response_size", len(msg)), slog.Float64("duration_seconds", r.Latency.Seconds()),
	}
	if rule.Sample > 1 && !rule.slow(r.Latency) {
		attrs = append(attrs, slog.Int("sample", rule.Sample))
	}
	l.Logger.LogAttrs(context.Background(), slog.LevelInfo, line, r.appendFinished(attrs)...)
}

// appendFinished appends the fields of what else is known of r, without those that do not apply.
func (r *Request) appendFinished(attrs []slog.Attr) []slog.Attr {
	namespace, pod := r.owner()
	use, _ := r.cacheUse()
	var server string
	if a := r.asked(); a != nil {
		server = a.Server.String()
	}
	for _, a := range [...]slog.Attr{
		slog.String("namespace", namespace), slog.String("pod", pod.Name), slog.String("workload", workloadName(pod.Workload)),
		slog.String("source", r.sourceName()), slog.String("cache", use), slog.String("search_path", r.searchPath()), slog.String("policy", r.policyName()), slog.String("upstream", server),
	} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	if w := &r.ownLookups.waits; w.asked {
		attrs = append(attrs, slog.Duration("upstream_duration", w.upstream))
	}
	return attrs
}

// maxAggregated bounds what an Aggregate keeps: the others are counted together.
const maxAggregated = 500

// Aggregate counts queries by the client's workload, the name and the rcode, and logs a line for each of
// these after an interval. The zero value is not ready: Logger and Interval must be set. It is safe for
// concurrent use.
type Aggregate struct {
	Logger   *slog.Logger
	Interval time.Duration

	mu     sync.Mutex
	counts map[aggregateKey]uint64
	// others are the queries of an interval beyond the bound.
	others  uint64
	timer   *time.Timer // nil: nothing is counted
	stopped bool
}

// aggregateKey is what queries are counted by.
type aggregateKey struct {
	namespace, workload string
	name                wire.Name
	rcode               string // "" without a reply
}

// add counts r. answered says that there is a reply.
func (a *Aggregate) add(r *Request, answered bool) {
	namespace, pod := r.owner()
	key := aggregateKey{namespace: namespace, workload: workloadName(pod.Workload), name: wire.Name(r.Query.Name())}
	if answered {
		key.rcode = r.reply.Rcode().String()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	if a.timer == nil {
		a.counts = make(map[aggregateKey]uint64)
		a.timer = time.AfterFunc(a.Interval, a.write)
	}
	if n := a.counts[key]; n == 0 && len(a.counts) >= maxAggregated {
		a.others++
		return
	}
	a.counts[key]++
}

// Stop logs the queries counted so far. Later ones are not counted.
func (a *Aggregate) Stop() {
	a.mu.Lock()
	a.stopped = true
	pending := a.timer != nil && a.timer.Stop()
	a.mu.Unlock()
	if pending {
		a.write()
	}
}

// write logs what is counted, the most frequent first, and begins anew.
func (a *Aggregate) write() {
	a.mu.Lock()
	counts, others := a.counts, a.others
	a.counts, a.others, a.timer = nil, 0, nil
	a.mu.Unlock()
	keys := make([]aggregateKey, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y aggregateKey) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.workload, y.workload),
			cmp.Compare(x.name, y.name), cmp.Compare(x.rcode, y.rcode))
	})
	for _, key := range keys {
		a.line(&key, key.name.String(), counts[key])
	}
	if others > 0 {
		a.line(new(aggregateKey), otherNames, others)
	}
}

// otherNames stands for the names beyond the bound.
const otherNames = "(other)"

// line logs n queries.
func (a *Aggregate) line(key *aggregateKey, name string, n uint64) {
	a.Logger.LogAttrs(context.Background(), slog.LevelInfo, "queries", slog.String("namespace", key.namespace), slog.String("workload", key.workload),
		slog.String("qname", name), slog.String("rcode", key.rcode), slog.Uint64("queries", n), slog.Duration("interval", a.Interval))
}
