package load

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxOpenConns bounds the one-shot connections that are open at once.
const maxOpenConns = 2000

// ledger collects the outcomes of TCP queries. It is safe for concurrent use.
type ledger struct {
	mu    sync.Mutex
	stats Stats
	took  []time.Duration
}

func (b *ledger) record(f Outcome, took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.add(f)
	b.stats.addError(err)
	if f != Lost {
		b.took = append(b.took, took)
	}
}

// result returns the final Stats.
func (b *ledger) result() Stats {
	b.stats.percentiles(b.took)
	return b.stats
}

// runStreams sends queries on persistent connections, and returns when all are answered or lost.
func (j Job) runStreams(ctx context.Context) Stats {
	var b ledger
	var wg sync.WaitGroup
	for i := range j.Streams {
		wg.Go(func() { j.runStream(ctx, &b, i) })
	}
	wg.Wait()
	return b.result()
}

// runStream is one connection of runStreams. If it fails, the query is lost and the next one gets a new
// connection.
func (j Job) runStream(ctx context.Context, b *ledger, i int) {
	to := j.Servers[i%len(j.Servers)]
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	tick := time.NewTicker(time.Second / time.Duration(j.StreamRate))
	defer tick.Stop()
	for n := i; ; n += j.Streams {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		fate, err := Lost, error(nil)
		if conn == nil {
			conn, err = net.DialTimeout("tcp", to.String(), j.Timeout)
		}
		if err == nil {
			fate, err = j.exchange(conn, n, began)
		}
		b.record(fate, time.Since(began), err)
		if err != nil && conn != nil {
			conn.Close()
			conn = nil
		}
	}
}

// runOneShots sends each query on a connection of its own.
func (j Job) runOneShots(ctx context.Context) Stats {
	var b ledger
	var wg sync.WaitGroup
	places := make(chan struct{}, maxOpenConns)
	tick := time.NewTicker(time.Second / time.Duration(j.OneShots))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			wg.Wait()
			return b.result()
		case <-tick.C:
			places <- struct{}{}
		}
		wg.Go(func() {
			defer func() { <-places }()
			began := time.Now()
			fate, err := j.askOnce(j.Servers[n%len(j.Servers)], n, began)
			b.record(fate, time.Since(began), err)
		})
	}
}

func (j Job) askOnce(to netip.AddrPort, n int, began time.Time) (Outcome, error) {
	conn, err := net.DialTimeout("tcp", to.String(), j.Timeout)
	if err != nil {
		return Lost, err
	}
	defer conn.Close()
	return j.exchange(conn, n, began)
}

// exchange sends the n-th query and reads the reply. The connection is unusable after an error.
func (j Job) exchange(conn net.Conn, n int, began time.Time) (Outcome, error) {
	if err := conn.SetDeadline(began.Add(j.Timeout)); err != nil {
		return Lost, err
	}
	q := appendQuery([]byte{0, 0}, j.name(n))
	binary.BigEndian.PutUint16(q, uint16(len(q)-2))
	binary.BigEndian.PutUint16(q[2:], uint16(n))
	if _, err := conn.Write(q); err != nil {
		return Lost, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return Lost, fmt.Errorf("reading an answer: %w", err)
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, msg); err != nil {
		return Lost, fmt.Errorf("reading an answer: %w", err)
	}
	if len(msg) < headerSize || binary.BigEndian.Uint16(msg) != uint16(n) {
		return Other, fmt.Errorf("%x is not a reply to query %d", msg, n)
	}
	fate, ok := j.classify(q[2:], msg)
	if !ok {
		return Other, fmt.Errorf("%x is not a reply to %x", msg, q[2:])
	}
	return fate, nil
}
