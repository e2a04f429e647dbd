package load

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// Schedule sends one query after the other at a rate and reports the outcome of each.
// Unlike a [Stream] it waits for answers longer than any server takes to give up. It is for
// some thousand queries a second.
type Schedule struct {
	Server netip.AddrPort
	// Count is the number of queries, and Rate how many are sent in a second on average, at random
	// times.
	Count, Rate int
	// Even makes the times even.
	Even bool
	// Name returns the name of the i-th query, whose type is A. It ends with a dot.
	Name func(i int) string
	// BeforeQuery is called before the i-th query is sent. It must not block. nil is no call.
	BeforeQuery func(i int)
	// Right reports whether the reply to the i-th query is the expected one. It runs on the
	// goroutine that sends. nil expects an address.
	Right func(i int, reply []byte) bool
	// RefusedIsLost says that queries are lost that reach no socket, which the server's kernel
	// says. Otherwise they end the run with an error.
	RefusedIsLost bool
	// Stop, when closed, ends sending before Count. nil never does.
	Stop <-chan struct{}
}

// QueryResult is the outcome of one query.
type QueryResult struct {
	// Sent is the time since the first query, and Latency the time to the answer. Without an
	// answer Latency is the time that the client has waited.
	Sent, Latency time.Duration
	// Failed says that the expected answer did not come, Lost that no reply came.
	Failed, Lost bool
}

// answerTimeout is how long an answer may take. Servers and clients give up after five
// seconds; a late SERVFAIL gets one more.
const answerTimeout = 6 * time.Second

// Run sends the queries and waits for all answers. The results are in the order of the
// queries; after Stop there are as many as were sent.
func (s Schedule) Run(ctx context.Context) ([]QueryResult, error) {
	if s.Rate < 1 {
		return nil, fmt.Errorf("%d queries a second; it takes at least one", s.Rate)
	}
	l := &sender{
		servers: []netip.AddrPort{s.Server}, sockets: 1, perSocket: maxQueriesPerSocket, buffer: receiveBuffer,
		arrivals: newArrivals(s.Rate, s.Even), timeout: answerTimeout,
		name: s.Name, before: s.BeforeQuery, over: s.over, classify: s.classify, refusedFails: !s.RefusedIsLost,
		report: &Report{}, records: make([]record, 0, s.Count),
	}
	if err := l.run(ctx); err != nil {
		return nil, err
	}
	results := make([]QueryResult, len(l.records))
	for i, r := range l.records {
		q := &results[i]
		q.Sent = time.Duration(r.asked - l.records[0].asked)
		q.Lost, q.Failed = r.outcome == Lost, r.outcome != Local
		q.Latency = answerTimeout
		if !q.Lost {
			q.Latency = time.Duration(r.received - r.asked)
		}
	}
	return results, nil
}

// over reports whether n queries are all.
func (s Schedule) over(n int) bool {
	select {
	case <-s.Stop:
		return true
	default:
		return n >= s.Count
	}
}

// classify returns Local for the expected answer and Other for any other reply.
func (s Schedule) classify(i int, _, reply []byte) (Outcome, bool) {
	right := reply[3]&15 == 0 && binary.BigEndian.Uint16(reply[6:]) > 0
	if s.Right != nil {
		right = s.Right(i, reply)
	}
	if right {
		return Local, true
	}
	return Other, true
}
