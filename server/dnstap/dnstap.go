// Package dnstap tells a collector of each query and reply (dnstap.info).
//
// A [Tap] is one collector. [Tap.Send] writes a message, as protobuf in a frame, behind
// those that wait in one buffer, and never waits itself: what finds the buffer full is
// dropped and counted. [Tap.Run] takes the whole buffer, leaves an empty one in its
// place and writes what it has taken with one call; while there is no connection the
// messages wait. The two buffers change hands for ever, so that nothing is allocated
// for a message.
//
// The schema has a dozen fields, and frame streams five control frames; both are
// written out here (message.go, frame.go), since a library of each would make objects
// for every query.
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
)

const (
	// maxBytes is what the messages that wait may take for each 10,000 of them: 1.6
	// KiB a message. With half of it signed answers are dropped before there are
	// 10,000, twice as much is as much again as all caches have by default.
	maxBytes = 16 << 20
	// keptBytes is how large an empty buffer may be that is kept: messages of a tenth
	// of a second at 50,000 a second.
	keptBytes = 1 << 20
	// dialTime bounds a connection's beginning: as long as CoreDNS waits.
	dialTime = 4 * time.Second
	// writeTime bounds one writing. A collector that takes nothing for so long is one
	// to connect to anew.
	writeTime = 4 * time.Second
	// endTime bounds what is done for the messages that wait when the tap ends; half
	// of what the whole agent has left for its last queries.
	endTime = 500 * time.Millisecond
	// backoffFirst and backoffMost bound the pauses between attempts to connect: a
	// collector that starts anew is found within a second, one that is gone costs six
	// attempts a minute.
	backoffFirst = 250 * time.Millisecond
	backoffMost  = 10 * time.Second
)

// Tap is one collector. [New] makes it, and it does something while [Tap.Run] runs. It
// is safe for concurrent use.
type Tap struct {
	cfg  config.Dnstap
	log  *slog.Logger
	head []byte // the fields that are the same in each message

	mu      sync.Mutex
	pending []byte // frames
	n       int    // messages in pending
	limit   int    // of n
	most    int    // of the bytes of pending

	wake    chan struct{}
	dropped atomic.Uint64
}

// New makes the tap of cfg, whose identity and version are those given where it has
// none. It opens no connection.
func New(cfg config.Dnstap, version string, log *slog.Logger) *Tap {
	if cfg.Identity == "" {
		cfg.Identity, _ = os.Hostname() // "" is no identity
	}
	if cfg.Version == "" {
		cfg.Version = version
	}
	t := &Tap{cfg: cfg, log: log, wake: make(chan struct{}, 1), limit: cfg.Queue}
	t.most = max(1, cfg.Queue/config.DnstapQueue) * maxBytes
	t.head = appendBytes(t.head, fieldIdentity, []byte(cfg.Identity))
	t.head = appendBytes(t.head, fieldVersion, []byte(cfg.Version))
	return t
}

// Dropped counts messages that found no place, or were lost with a connection.
func (t *Tap) Dropped() uint64 { return t.dropped.Load() }

// Endpoint is where the collector is, as a label of metrics.
func (t *Tap) Endpoint() string { return t.cfg.Network + "://" + t.cfg.Address }

// Send hands m over. It does not block, and m is done with when it returns.
func (t *Tap) Send(m *Message) {
	t.mu.Lock()
	full := t.n >= t.limit || len(t.pending)+m.room(t.head) > t.most
	if !full {
		t.pending = m.appendFrame(t.pending, t.head)
		t.n++
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

// take gives the frames that wait, and leaves spare in their place.
func (t *Tap) take(spare []byte) (frames []byte, n int) {
	if cap(spare) > keptBytes {
		spare = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	frames, n = t.pending, t.n
	t.pending, t.n = spare[:0], 0
	return frames, n
}

// Run connects, writes what there is, and connects again when the collector goes away,
// until ctx ends; then what waits is written, if that does not take long.
func (t *Tap) Run(ctx context.Context) {
	pause, said := backoffFirst, false
	for ctx.Err() == nil {
		began := time.Now()
		worked, err := t.session(ctx)
		if err == nil {
			return
		}
		if worked || !said { // the attempts that follow have nothing new to say
			t.log.Warn("dnstap: no connection to the collector", "endpoint", t.Endpoint(), "err", err, "dropped", t.dropped.Load())
			said = true
		}
		if time.Since(began) > backoffMost {
			pause = backoffFirst // it worked for a while
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, backoffMost)
	}
	_, n := t.take(nil)
	t.dropped.Add(uint64(n))
}

// session is one connection, until it breaks, or ctx ends, which is no error. worked
// says that the collector was there.
func (t *Tap) session(ctx context.Context) (worked bool, err error) {
	conn, err := t.dial(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	if err := greet(ctx, conn, r); err != nil {
		return false, err
	}
	t.log.Info("dnstap: connected to the collector", "endpoint", t.Endpoint())
	gone := make(chan error, 1)
	go func() { gone <- watch(r) }()
	if err := t.write(ctx, conn, gone); err != nil {
		return true, err
	}
	_ = conn.SetDeadline(time.Now().Add(endTime))
	if err := end(conn); err == nil {
		<-gone //nolint:errcheck // whatever it is, the collector has taken all
	}
	return true, nil
}

// greet begins the stream; it ends with ctx, or when it takes too long.
func greet(ctx context.Context, conn net.Conn, r *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(dialTime)); err != nil {
		return err
	}
	cut := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	err := begin(conn, r)
	if !cut() {
		return errors.Join(ctx.Err(), err)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return err
}

// watch waits for the collector to end the stream, or to close the connection, and
// says which. It says nothing else.
func watch(r *bufio.Reader) error {
	if err := finished(r); err != nil {
		return fmt.Errorf("the collector has gone: %w", err)
	}
	return errors.New("the collector has ended the stream")
}

// write writes what there is until ctx ends; then nil.
func (t *Tap) write(ctx context.Context, conn net.Conn, gone <-chan error) error {
	var frames []byte
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case err := <-gone:
			return err
		case <-t.wake:
		}
		var n int
		if frames, n = t.take(frames); n == 0 {
			continue
		}
		limit := writeTime
		if last {
			limit = endTime
		}
		if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		if _, err := conn.Write(frames); err != nil {
			t.dropped.Add(uint64(n))
			return fmt.Errorf("writing: %w", err)
		}
	}
	return nil
}

func (t *Tap) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
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
		_ = c.SetWriteBuffer(t.cfg.WriteBuffer) // the kernel bounds it, and works with less
	}
	return conn, nil
}
