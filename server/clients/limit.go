package clients

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Reason is the limit because of which a client's query or connection was shed, refused or dropped.
type Reason uint8

const (
	// ReasonClientLimit: the client exceeds the rate of `client_limit` or --client-limit.
	ReasonClientLimit Reason = iota
	// ReasonPlaces: there was no place to wait in, or the query lost its place to another client.
	ReasonPlaces
	// ReasonInFlight: too many queries are in flight to the upstreams.
	ReasonInFlight
	// ReasonBudget: the query exceeds the `max_rate` of the upstreams.
	ReasonBudget
	// ReasonSocket: the socket's queue is full, and the client has more than its share of it.
	ReasonSocket
	// ReasonConnections: the connection was closed for another one, or refused, because there are too many.
	ReasonConnections
	numReasons
)

// String returns the value of the label reason in metrics, and of the field in logs.
func (r Reason) String() string {
	return [numReasons]string{"client_limit", "places", "in_flight", "budget", "socket", "connections"}[r]
}

// Limit counts n queries of addr, or connections, that r has limited. stripe and addr are as in [Table.Count],
// which does not count them: a caller that has resolved the query calls both. It allocates only for the first query
// of a client. A nil Table counts nothing.
func (t *Table) Limit(stripe int, addr netip.Addr, r Reason, n uint64) {
	if t == nil || n == 0 {
		return
	}
	key := addrKey(addr.As16())
	h := t.hash(&key)
	s := &t.stripes[uint(stripe)%uint(len(t.stripes))]
	s.mu.Lock()
	sl := s.find(&key, h)
	if sl == nil && t.full.Load() {
		sl = s.findOrOther(&key, h)
	}
	if sl != nil {
		sl.add(limited+int(r), n)
	}
	s.mu.Unlock()
	if sl == nil {
		t.countTaken(s, key, h, func(sl *slot) { sl.add(limited+int(r), n) })
	}
}

const (
	// limitLogInterval is the time between two lines about one client and reason.
	limitLogInterval = time.Minute
	// maxLimitLines bounds the lines of one sweep: 60 in a minute. The clients with the most limited queries come
	// first, the others in the next sweeps.
	maxLimitLines = 5
)

// loggedLimit is the last line about one reason: when it was written, and the counter then.
type loggedLimit struct {
	written bool
	at      time.Duration
	count   uint64
}

// limitLine is a line about a limited client, before it is written.
type limitLine struct {
	owner  *owner
	reason Reason
	count  uint64 // since the last line
	// client and namespace are the owner's at the time of the line.
	client, namespace string
}

// limitLines returns the lines that are due, and records them as written.
func (t *Table) limitLines(now time.Duration) (lines []limitLine) {
	if t.opts.Log == nil {
		return nil
	}
	for o := range t.eachOwner {
		for r := range numReasons {
			var last loggedLimit
			if o.logged != nil {
				last = o.logged[r]
			}
			count := o.total[limited+int(r)] - last.count
			if count > 0 && (!last.written || now-last.at >= limitLogInterval) {
				lines = append(lines, limitLine{owner: o, reason: r, count: count})
			}
		}
	}
	slices.SortFunc(lines, func(a, b limitLine) int { return cmp.Compare(b.count, a.count) })
	lines = lines[:min(len(lines), maxLimitLines)]
	for i := range lines {
		l := &lines[i]
		l.client, l.namespace = l.owner.addrList(), cmp.Or(l.owner.kind.String(), l.owner.pod.Namespace)
		if l.owner.logged == nil {
			l.owner.logged = new([numReasons]loggedLimit)
		}
		l.owner.logged[l.reason] = loggedLimit{written: true, at: now, count: l.owner.total[limited+int(l.reason)]}
	}
	return lines
}

// addrList returns the addresses, separated by commas; "" for owners that have none of their own.
func (o *owner) addrList() string {
	list := make([]string, len(o.addrs))
	for i, a := range o.addrs {
		list[i] = a.String()
	}
	return strings.Join(list, ",")
}

// log writes the line.
func (l *limitLine) log(log *slog.Logger) {
	log.Warn("client limited", "client", l.client, "namespace", l.namespace, "pod", l.owner.pod.Name, "reason", l.reason.String(), "count", l.count)
}
