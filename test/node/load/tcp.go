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

// mostShots bounds the connections that are open at once: those of two seconds at the
// highest rate that makes sense.
const mostShots = 2000

// book keeps what became of questions over TCP.
type book struct {
	mu    sync.Mutex
	tally Tally
	took  []time.Duration
}

func (b *book) enter(f Fate, took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally.add(f)
	b.tally.note(err)
	if f != Lost {
		b.took = append(b.took, took)
	}
}

// close is what the tally is in the end.
func (b *book) close() Tally {
	b.tally.percentiles(b.took)
	return b.tally
}

// overStreams asks on connections that stay open, and returns when all answers are there
// or lost.
func (j Job) overStreams(ctx context.Context) Tally {
	var b book
	var wg sync.WaitGroup
	for i := range j.Streams {
		wg.Go(func() { j.stream(ctx, &b, i) })
	}
	wg.Wait()
	return b.close()
}

// stream is one such connection. Where it breaks under a question, that question is lost
// and the next one gets a new connection.
func (j Job) stream(ctx context.Context, b *book, i int) {
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
			conn, err = net.DialTimeout("tcp", to.String(), j.Patience)
		}
		if err == nil {
			fate, err = j.exchange(conn, n, began)
		}
		b.enter(fate, time.Since(began), err)
		if err != nil && conn != nil {
			conn.Close()
			conn = nil
		}
	}
}

// overShots asks over connections for one question each.
func (j Job) overShots(ctx context.Context) Tally {
	var b book
	var wg sync.WaitGroup
	places := make(chan struct{}, mostShots)
	tick := time.NewTicker(time.Second / time.Duration(j.Shots))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			wg.Wait()
			return b.close()
		case <-tick.C:
			places <- struct{}{}
		}
		wg.Go(func() {
			defer func() { <-places }()
			began := time.Now()
			fate, err := j.shoot(j.Servers[n%len(j.Servers)], n, began)
			b.enter(fate, time.Since(began), err)
		})
	}
}

func (j Job) shoot(to netip.AddrPort, n int, began time.Time) (Fate, error) {
	conn, err := net.DialTimeout("tcp", to.String(), j.Patience)
	if err != nil {
		return Lost, err
	}
	defer conn.Close()
	return j.exchange(conn, n, began)
}

// exchange asks the n-th question. After an error the connection is of no use any more.
func (j Job) exchange(conn net.Conn, n int, began time.Time) (Fate, error) {
	if err := conn.SetDeadline(began.Add(j.Patience)); err != nil {
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
		return Other, fmt.Errorf("%x is no answer to question %d", msg, n)
	}
	fate, ok := j.judge(q[2:], msg)
	if !ok {
		return Other, fmt.Errorf("%x is no answer to %x", msg, q[2:])
	}
	return fate, nil
}
