package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Job says what a client sends. All queries are of type A.
type Job struct {
	// Servers are queried in turn.
	Servers []netip.AddrPort
	// Local is the address in the agent's answers, Cluster that in the cluster DNS's. They
	// may be equal if the agent's answers have a TTL of at least TTL seconds, and the others
	// less.
	Local, Cluster netip.Addr
	TTL            uint32
	// Names is the number of names below Zone, which ends with a dot. One query in FreshEvery is
	// for a new name; 0: none is.
	Names, FreshEvery int
	Zone              string
	// Timeout is how long an answer may take; a later one counts as lost. 0 means
	// defaultTimeout.
	Timeout time.Duration
	// Duration is how long queries are sent, unless the client is stopped earlier.
	Duration time.Duration

	// Rate is the number of UDP queries a second. They come from Sockets sockets in turn, each
	// of which is replaced by one with another port after QueriesPerSocket queries.
	Rate, Sockets, QueriesPerSocket int
	// Streams is the number of persistent TCP connections, each with StreamRate queries a second,
	// one after the other.
	Streams, StreamRate int
	// OneShots is the number of queries a second with a TCP connection each.
	OneShots int
}

const (
	// defaultTimeout is less than the five seconds that resolvers in pods wait.
	defaultTimeout = 2 * time.Second
	// maxQuestions bounds the memory of a report.
	maxQuestions = 20_000_000
	// maxSockets keeps the client, with its replaced sockets, below the usual limit of 4,096
	// descriptors in a container.
	maxSockets = 1024
	// maxQueriesPerSocket is the number of message IDs.
	maxQueriesPerSocket = 1 << 16
)

// check returns an error if the job is invalid.
func (j Job) check() error {
	switch {
	case len(j.Servers) == 0:
		return errors.New("load: no server to ask")
	case !strings.HasSuffix(j.Zone, ".") || len(j.Zone) > 200:
		return fmt.Errorf("load: the zone %q; it ends with a dot and has 200 bytes at most", j.Zone)
	case j.Names < 1 || j.Duration <= 0:
		return errors.New("load: it takes at least one name and some time")
	case j.Rate > 0 && (outOfRange(j.Sockets, maxSockets) || outOfRange(j.QueriesPerSocket, maxQueriesPerSocket)):
		return fmt.Errorf("load: %d sockets for %d questions each; 1 to %d and 1 to %d are possible", j.Sockets, j.QueriesPerSocket, maxSockets, maxQueriesPerSocket)
	case j.Duration.Seconds()*float64(j.Rate) > maxQuestions:
		return fmt.Errorf("load: more than %d questions", maxQuestions)
	}
	return nil
}

// runUDP sends queries until the job's Duration is over or ctx is done, and then waits for answers.
func (j Job) runUDP(ctx context.Context, r *Report) error {
	start := time.Now()
	s := &sender{
		servers: j.Servers, sockets: j.Sockets, perSocket: j.QueriesPerSocket, buffer: jobBuffer,
		arrivals: newArrivals(j.Rate, true), tick: jobTick, maxLag: jobMaxLag, timeout: j.Timeout, name: j.name,
		over:     func(int) bool { return time.Since(start) >= j.Duration || ctx.Err() != nil },
		classify: func(_ int, query, msg []byte) (Outcome, bool) { return j.classify(query, msg) },
		report:   r, records: make([]record, 0, min(1<<20, int(j.Duration.Seconds()*float64(j.Rate))+1)),
	}
	err := s.run(context.WithoutCancel(ctx))
	r.addUDP(s.records)
	return err
}

func outOfRange(n, most int) bool { return n < 1 || n > most }

// name returns the name of the n-th query.
func (j Job) name(n int) string {
	if j.FreshEvery > 0 && n%j.FreshEvery == j.FreshEvery-1 {
		return fmt.Sprintf("fresh-%d.%s", n, j.Zone)
	}
	// A prime step: names come in an order that is not that of sockets.
	return fmt.Sprintf("name-%d.%s", n*7919%j.Names, j.Zone)
}
