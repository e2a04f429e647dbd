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
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
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
	// TLS returns the settings for a collector's connection, if the tap listens for TLS. It is set
	// before [Tap.Run].
	TLS func() *tls.Config

	cfg  config.Dnstap
	log  *slog.Logger
	dial func(context.Context) (net.Conn, error)

	queue               // of the collector that is dialed
	listener  *listener // nil: the collector is dialed
	dropped   atomic.Uint64
	connected atomic.Int32 // 1 while the collector that is dialed is connected

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
	common := appendBytes(nil, fieldIdentity, []byte(cfg.Identity))
	common = appendBytes(common, fieldVersion, []byte(cfg.Version))
	t := &Tap{cfg: cfg, log: log}
	t.queue = newQueue(cfg, 1, common, &t.dropped)
	t.dial = t.connect
	t.outages.Messages = outage.Messages{
		Start: "collector unreachable", Ongoing: "collector still unreachable", End: "collector reachable again",
	}
	if cfg.Listen {
		t.listener = &listener{tap: t, queues: make(map[*queue]struct{}), resumed: make(chan struct{})}
		t.outages.Messages = outage.Messages{
			Start: "not listening for collectors", Ongoing: "still not listening for collectors", End: "listening for collectors again",
		}
	}
	t.outages.Logger, t.outages.Level, t.outages.Fields = log, slog.LevelWarn, t.outageFields
	return t
}

// Dropped returns how many messages found the buffer of a collector full or were lost with a
// connection.
func (t *Tap) Dropped() uint64 { return t.dropped.Load() }

// Collectors returns how many collectors are connected.
func (t *Tap) Collectors() int {
	if t.listener != nil {
		return int(t.listener.connected.Load())
	}
	return int(t.connected.Load())
}

// Endpoint returns the address of the collector, or that on which it is awaited, as a metric label.
func (t *Tap) Endpoint() string { return t.cfg.Network + "://" + t.cfg.Address }

// Send queues m. It does not block, and does not keep m.
func (t *Tap) Send(m *Message) {
	if t.listener != nil {
		t.listener.send(m)
		return
	}
	t.queue.send(m)
}

// Suspend makes a tap that listens free its address for another process: it closes the listener and
// the connections. It does not block. Other taps go on.
func (t *Tap) Suspend() {
	if t.listener != nil {
		t.listener.setSuspended(true)
	}
}

// Resume reverts Suspend.
func (t *Tap) Resume() {
	if t.listener != nil {
		t.listener.setSuspended(false)
	}
}

// Run connects to the collector, sends messages, and reconnects after errors, until ctx
// ends. Then it sends the remaining messages within closeTimeout. If the tap listens, Run accepts
// collectors instead.
func (t *Tap) Run(ctx context.Context) {
	defer t.outages.Stop()
	if t.listener != nil {
		t.listener.run(ctx)
		return
	}
	backoff := minBackoff
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
	t.connected.Store(1)
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
	defer t.connected.Store(0)
	return t.queue.serve(ctx, conn, t.recovered)
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
