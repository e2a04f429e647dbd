package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
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
	// Name returns the name of the i-th query, whose type is A.
	Name func(i int) string
	// BeforeQuery is called before the i-th query is sent. It must not block. nil is no call.
	BeforeQuery func(i int)
	// Right reports whether the reply to the i-th query is the expected one. It runs on the
	// goroutine that reads. nil expects an address.
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

// maxWaiting is the number of queries that may wait: of the 65,536 IDs, each must be free when
// its turn comes.
const maxWaiting = 1 << 15

// Run sends the queries and waits for all answers. The results are in the order of the
// queries; after Stop there are as many as were sent.
func (s Schedule) Run(ctx context.Context) ([]QueryResult, error) {
	if s.Rate < 1 || s.Rate > maxWaiting/int(answerTimeout/time.Second) {
		return nil, fmt.Errorf("%d queries a second; between 1 and %d are possible", s.Rate, maxWaiting/int(answerTimeout/time.Second))
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(s.Server))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// A thousand answers may come at once; the kernel may grant less than for all of them.
	_ = conn.SetReadBuffer(receiveBuffer)
	r := &scheduleRun{
		Schedule: s, conn: conn, start: time.Now(),
		results: make([]QueryResult, s.Count), arrived: make([]time.Duration, s.Count), failed: make([]bool, s.Count),
	}
	r.target.Store(int64(s.Count))
	read := make(chan error, 1)
	go func() { read <- r.read() }()
	sent, err := r.send(ctx)
	r.target.Store(int64(sent))
	limit := answerTimeout
	if err != nil || r.answered.Load() >= int64(sent) {
		limit = 0 // nothing more comes
	}
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if err := errors.Join(err, <-read); err != nil {
		return nil, err
	}
	for i := range r.results[:sent] {
		q := &r.results[i]
		q.Lost = r.arrived[i] == 0
		q.Latency, q.Failed = r.arrived[i]-q.Sent, r.failed[i] || q.Lost
		if q.Lost {
			q.Latency = answerTimeout
		}
	}
	return r.results[:sent], nil
}

// receiveBuffer is the size of the receive buffer in bytes.
const receiveBuffer = 4 << 20

// scheduleRun is a running Schedule. The sender writes results, the reader all else.
type scheduleRun struct {
	Schedule
	conn    *net.UDPConn
	start   time.Time
	results []QueryResult
	arrived []time.Duration // since start; 0 before the answer
	failed  []bool
	// sent is the number of queries so far. answered is the number of answers; the reader ends when
	// it reaches target.
	sent, answered, target atomic.Int64
}

// send sends the queries and returns their number.
func (r *scheduleRun) send(ctx context.Context) (int, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	due, times := r.start, newArrivals(r.Rate, r.Even)
	for i := range r.Count {
		pause.Reset(time.Until(due))
		due = due.Add(times.next())
		select {
		case <-pause.C:
		case <-r.Stop:
			return i, nil
		case <-ctx.Done():
			return i, ctx.Err()
		}
		if r.BeforeQuery != nil {
			r.BeforeQuery(i)
		}
		m := new(dns.Msg).SetQuestion(r.Name(i), dns.TypeA)
		m.Id = uint16(i)
		packed, err := m.Pack()
		if err != nil {
			return i, err
		}
		r.results[i].Sent = time.Since(r.start)
		r.sent.Store(int64(i + 1))
		_, err = r.conn.Write(packed)
		if r.refused(err) {
			_, err = r.conn.Write(packed) // the error was an earlier query's
		}
		if err != nil && !r.refused(err) {
			return i, fmt.Errorf("asking %s: %w", r.Server, err)
		}
	}
	return r.Count, nil
}

// read reads answers until all have come or the deadline has passed.
func (r *scheduleRun) read() error {
	buf := make([]byte, dns.MaxMsgSize)
	for r.answered.Load() < r.target.Load() {
		n, err := r.conn.Read(buf)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return nil
		}
		if r.refused(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", r.Server, err)
		}
		if n >= 12 {
			r.take(buf[:n], time.Since(r.start))
		}
	}
	return nil
}

// take records a reply, with a whole header, that has arrived now.
func (r *scheduleRun) take(reply []byte, now time.Duration) {
	// Earlier queries with the same ID have timed out.
	i := latest(int(binary.BigEndian.Uint16(reply)), int(r.sent.Load()))
	if i < 0 || r.arrived[i] != 0 {
		return
	}
	rcode, answers := reply[3]&15, binary.BigEndian.Uint16(reply[6:])
	r.arrived[i], r.failed[i] = now, rcode != 0 || answers == 0
	if r.Right != nil {
		r.failed[i] = !r.Right(i, reply)
	}
	r.answered.Add(1)
}

// refused reports whether err says that a query is lost because it reached no socket.
func (s Schedule) refused(err error) bool {
	return s.RefusedIsLost && errors.Is(err, unix.ECONNREFUSED)
}

// latest returns the last of the sent queries with the ID, -1 if there is none.
func latest(id, sent int) int {
	if id >= sent {
		return -1
	}
	return id + (sent-1-id)>>16<<16
}
