package clients

import (
	"log/slog"
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
