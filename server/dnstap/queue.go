package dnstap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// queue holds the messages for one collector until they are written. It is safe for concurrent use.
type queue struct {
	commonFields []byte         // encoded fields that are the same in each message
	lost         *atomic.Uint64 // counts messages that found the queue full

	mu        sync.Mutex
	pending   []byte // frames
	queued    int    // messages in pending
	maxQueued int    // limit of queued
	maxBytes  int    // limit of pending

	wake chan struct{}
}

// newQueue returns a queue of the size in cfg, divided by share.
func newQueue(cfg config.Dnstap, share int, common []byte, lost *atomic.Uint64) queue {
	return queue{
		commonFields: common, lost: lost, wake: make(chan struct{}, 1), maxQueued: cfg.Queue,
		maxBytes: max(1, cfg.Queue/config.DnstapQueue) * bufferSize / share,
	}
}

// send queues m, or counts it as lost.
func (q *queue) send(m *Message) {
	q.mu.Lock()
	full := q.queued >= q.maxQueued || len(q.pending)+m.maxLen(q.commonFields) > q.maxBytes
	if !full {
		q.pending = m.appendFrame(q.pending, q.commonFields)
		q.queued++
	}
	q.mu.Unlock()
	if full {
		q.lost.Add(1)
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// swapBuffers returns the queued frames and their number, and continues with spare.
func (q *queue) swapBuffers(spare []byte) (frames []byte, n int) {
	if cap(spare) > maxKeptBuffer {
		spare = nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	frames, n = q.pending, q.queued
	q.pending, q.queued = spare[:0], 0
	return frames, n
}

// serve starts a stream on conn, calls connected, and writes messages until conn fails, or until ctx
// ends, which is no error. lost is the number of messages lost with the connection.
func (q *queue) serve(ctx context.Context, conn net.Conn, connected func()) (lost int, err error) {
	r := bufio.NewReader(conn)
	if err := handshake(ctx, conn, r); err != nil {
		return 0, err
	}
	connected()
	gone := make(chan error, 1)
	go func() { gone <- watchCollector(r) }()
	if lost, err := q.write(ctx, conn, gone); err != nil {
		return lost, err
	}
	_ = conn.SetDeadline(time.Now().Add(closeTimeout))
	if _, err := conn.Write(controlFrame(controlStop, "")); err == nil {
		<-gone //nolint:errcheck // whatever it is, the collector has taken all
	}
	return 0, nil
}

// handshake starts the stream. It fails when ctx ends or after dialTimeout.
func handshake(ctx context.Context, conn net.Conn, r *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	cut := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	err := startStream(conn, r)
	if !cut() {
		return errors.Join(ctx.Err(), err)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return err
}

// watchCollector blocks until the collector ends the stream or the connection, and returns
// which.
func watchCollector(r *bufio.Reader) error {
	if err := awaitFinish(r); err != nil {
		return fmt.Errorf("the collector disconnected: %w", err)
	}
	return errors.New("the collector has ended the stream")
}

// write writes messages until ctx ends, and then returns no error. lost is the number of
// messages that it failed to write.
func (q *queue) write(ctx context.Context, conn net.Conn, gone <-chan error) (lost int, err error) {
	var frames []byte
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case err := <-gone:
			return 0, err
		case <-q.wake:
		}
		var n int
		if frames, n = q.swapBuffers(frames); n == 0 {
			continue
		}
		limit := writeTimeout
		if last {
			limit = closeTimeout
		}
		if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return n, err
		}
		if _, err := conn.Write(frames); err != nil {
			return n, fmt.Errorf("writing: %w", err)
		}
	}
	return 0, nil
}
