// Package dnstap sends each query and reply to a collector (dnstap.info).
//
// A [Tap] is one collector. [Tap.Send] encodes a message as protobuf in a Frame Streams
// frame and appends it to a buffer. It never blocks: if the buffer is full, the message is
// dropped and counted. [Tap.Run] swaps the buffer for an empty one and writes all of it
// with one system call. While there is no connection, messages stay in the buffer. The two
// buffers are reused, so a message allocates nothing.
//
// The encoding (message.go) and the handshake (framestream.go) do not use golang-dnstap and
// golang-framestream, because of a measurement (golang-dnstap 0.4.0, 10,000 queries per
// second answered from hosts, a collector on a unix socket, median of five runs): a query
// costs 6.7 µs of CPU time without dnstap, 10.0 µs with this package and 13.8 µs with the
// library. The library allocates 14 times per message, its queue of 32 messages dropped a
// fifth of them, and the agent's RSS was 4 MiB larger. It supports no TLS, and its Close
// does not return while the collector is unreachable. framestream's Writer alone reads only
// in the handshake and in Close, so it would notice that the collector has disconnected one
// write late, and lose these messages. `go test -bench .` in test/dnstap compares the
// three; the test there decodes this package's stream with the library.
package dnstap

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/outage"
)

const (
	// bufferSize is the capacity of the buffer, in bytes, for each 10,000 messages: 1.6 KiB
	// per message, enough for signed answers.
	bufferSize = 16 << 20
	// maxKeptBuffer is the largest buffer kept for reuse, in bytes: a tenth of a second at
	// 50,000 messages per second.
	maxKeptBuffer = 1 << 20
	// dialTimeout bounds connecting, including the handshakes, as in CoreDNS.
	dialTimeout = 4 * time.Second
	// writeTimeout bounds a write. After that the collector is reconnected.
	writeTimeout = 4 * time.Second
	// closeTimeout bounds writing the remaining messages when the tap ends. It is half of
	// what the agent has left for its last queries.
	closeTimeout = 500 * time.Millisecond
	// minBackoff and maxBackoff bound the delay between attempts to connect.
	minBackoff = 250 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Tap is one collector, created by [New]. Messages are sent while [Tap.Run] runs. It is
// safe for concurrent use.
type Tap struct {
	cfg          config.Dnstap
	log          *slog.Logger
	dial         func(context.Context) (net.Conn, error)
	commonFields []byte // encoded fields that are the same in each message

	mu        sync.Mutex
	pending   []byte // frames
	queued    int    // messages in pending
	maxQueued int    // limit of queued
	maxBytes  int    // limit of pending

	wake    chan struct{}
	dropped atomic.Uint64

	outages       outage.Log
	unreachable   bool          // the collector; only for Run
	droppedBefore atomic.Uint64 // value of dropped when the collector became unreachable
}

// New returns the tap of cfg. The identity defaults to the host name and the version to the
// given one. New opens no connection.
func New(cfg config.Dnstap, version string, log *slog.Logger) *Tap {
	if cfg.Identity == "" {
		cfg.Identity, _ = os.Hostname() // "" is no identity
	}
	if cfg.Version == "" {
		cfg.Version = version
	}
	t := &Tap{cfg: cfg, log: log, wake: make(chan struct{}, 1), maxQueued: cfg.Queue}
	t.dial = t.connect
	t.maxBytes = max(1, cfg.Queue/config.DnstapQueue) * bufferSize
	t.commonFields = appendBytes(t.commonFields, fieldIdentity, []byte(cfg.Identity))
	t.commonFields = appendBytes(t.commonFields, fieldVersion, []byte(cfg.Version))
	t.outages.Messages = outage.Messages{
		Start: "collector unreachable", Ongoing: "collector still unreachable", End: "collector reachable again",
	}
	t.outages.Logger, t.outages.Level, t.outages.Fields = log, slog.LevelWarn, t.outageFields
	return t
}

// Dropped returns how many messages found the buffer full or were lost with a connection.
func (t *Tap) Dropped() uint64 { return t.dropped.Load() }

// Endpoint returns the collector's address as a metric label.
func (t *Tap) Endpoint() string { return t.cfg.Network + "://" + t.cfg.Address }

// Send queues m. It does not block, and does not keep m.
func (t *Tap) Send(m *Message) {
	t.mu.Lock()
	full := t.queued >= t.maxQueued || len(t.pending)+m.maxLen(t.commonFields) > t.maxBytes
	if !full {
		t.pending = m.appendFrame(t.pending, t.commonFields)
		t.queued++
	}
	t.mu.Unlock()
	if full {
		t.dropped.Add(1)
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// swapBuffers returns the queued frames and their number, and continues with spare.
func (t *Tap) swapBuffers(spare []byte) (frames []byte, n int) {
	if cap(spare) > maxKeptBuffer {
		spare = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	frames, n = t.pending, t.queued
	t.pending, t.queued = spare[:0], 0
	return frames, n
}

// Run connects to the collector, sends messages, and reconnects after errors, until ctx
// ends. Then it sends the remaining messages within closeTimeout.
func (t *Tap) Run(ctx context.Context) {
	backoff := minBackoff
	defer t.outages.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		lost, err := t.session(ctx)
		if err == nil {
			return
		}
		t.fail(lost, err)
		if time.Since(began) > maxBackoff {
			backoff = minBackoff // it worked for a while
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
	_, n := t.swapBuffers(nil)
	t.dropped.Add(uint64(n))
}

// fail notes that the collector is unreachable, and that a broken connection has lost
// messages.
func (t *Tap) fail(lost int, err error) {
	if !t.unreachable {
		t.unreachable = true
		t.droppedBefore.Store(t.dropped.Load())
	}
	t.dropped.Add(uint64(lost))
	t.outages.Fail(err, t.outageFields()...)
}

// recovered notes that the collector is connected.
func (t *Tap) recovered() {
	if !t.unreachable {
		t.log.Info("collector connected", "endpoint", t.Endpoint())
		return
	}
	t.unreachable = false
	t.outages.Recover(t.outageFields()...)
}

// outageFields returns the log fields of an outage: the collector, and the messages dropped
// since it became unreachable.
func (t *Tap) outageFields() []any {
	return []any{"endpoint", t.Endpoint(), "dropped", t.dropped.Load() - t.droppedBefore.Load()}
}

// session handles one connection until it fails, or until ctx ends, which is no error. lost
// is the number of messages lost with the connection.
func (t *Tap) session(ctx context.Context) (lost int, err error) {
	conn, err := t.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	if err := handshake(ctx, conn, r); err != nil {
		return 0, err
	}
	t.recovered()
	gone := make(chan error, 1)
	go func() { gone <- watchCollector(r) }()
	if lost, err := t.write(ctx, conn, gone); err != nil {
		return lost, err
	}
	_ = conn.SetDeadline(time.Now().Add(closeTimeout))
	if err := sendStop(conn); err == nil {
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
func (t *Tap) write(ctx context.Context, conn net.Conn, gone <-chan error) (lost int, err error) {
	var frames []byte
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case err := <-gone:
			return 0, err
		case <-t.wake:
		}
		var n int
		if frames, n = t.swapBuffers(frames); n == 0 {
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

// connect opens a connection to the collector. It fails after dialTimeout.
func (t *Tap) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if t.cfg.Network == "tls" {
		//nolint:gosec // skipverify is the user's
		d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.cfg.SkipVerify}}
		conn, err = d.DialContext(ctx, "tcp", t.cfg.Address)
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, t.cfg.Network, t.cfg.Address)
	}
	if err != nil {
		return nil, err
	}
	if c, ok := conn.(*net.TCPConn); ok && t.cfg.WriteBuffer > 0 {
		_ = c.SetWriteBuffer(t.cfg.WriteBuffer) // the kernel limits it
	}
	return conn, nil
}
