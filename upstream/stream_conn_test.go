// Inside the package: the tests use a streamConn without a connection.

package upstream

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// testConn returns a streamConn without a connection, whose timer never fires.
func testConn(now time.Time) *streamConn {
	c := newStreamConn(now, new(int))
	c.cancel = func() {}
	c.timer = time.AfterFunc(time.Hour, func() {})
	c.conn = &bytesConn{}
	return c
}

// TestStreamConnAgainstModel applies random operations to a streamConn and compares it with
// a list of the queries in flight and of the orphaned IDs.
func TestStreamConnAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	start := time.Now()
	c := testConn(start)
	defer c.timer.Stop()
	var air []*query
	var late [][]byte // replies to canceled and expired queries
	reply := func(q *query) []byte { return answerA(append([]byte(nil), q.message()...)) }
	drop := func(i int) *query {
		q := air[i]
		air[i] = air[len(air)-1]
		air = air[:len(air)-1]
		return q
	}
	for step := range 20_000 {
		c.writeBuf = c.writeBuf[:0]
		now := start.Add(time.Duration(step) * time.Microsecond)
		switch op := random.IntN(100); {
		case op < 45 && len(c.queries) < 200:
			q := fixedQuery(t) // all have the same ID, so each needs a new one
			q.deadline = now.Add(time.Hour + time.Duration(random.IntN(1000)))
			c.add(q, now)
			if !bytes.Equal(c.writeBuf, q.frame) {
				t.Fatalf("step %d: queued is %x, the query %x", step, c.writeBuf, q.frame)
			}
			air = append(air, q)
		case op < 70 && len(air) > 0:
			q := drop(random.IntN(len(air)))
			msg := reply(q)
			msg[headerLen+1] ^= 1
			if deliverAndComplete(c, msg, now) {
				t.Fatalf("step %d: a reply to another question is taken", step)
			}
			msg[headerLen+1] ^= 1
			if !deliverAndComplete(c, msg, now) {
				t.Fatalf("step %d: the reply is not taken", step)
			}
			if over, err := completed(q); err != nil || !over || !bytes.Equal(q.reply[:q.replyLen], msg) {
				t.Fatalf("step %d: the call landed %t, with %v and %x", step, over, err, q.reply[:q.replyLen])
			}
			if deliverAndComplete(c, msg, now) {
				t.Fatalf("step %d: the reply is taken twice", step)
			}
		case op < 85 && len(air) > 0:
			q := drop(random.IntN(len(air)))
			late = append(late, reply(q))
			c.orphan(q)
		case op < 95 && len(late) > 0:
			i := random.IntN(len(late))
			if !deliverAndComplete(c, late[i], now) {
				t.Fatalf("step %d: a reply that comes late is a stray", step)
			}
			if deliverAndComplete(c, late[i], now) {
				t.Fatalf("step %d: a reply that comes late is taken twice", step)
			}
			late = append(late[:i], late[i+1:]...)
		case op < 97 && len(air) > 0:
			at := air[random.IntN(len(air))].deadline
			n := 0
			for i := len(air) - 1; i >= 0; i-- {
				if !air[i].deadline.After(at) {
					n++
					late = append(late, reply(drop(i)))
				}
			}
			if got := c.expire(at); got != n {
				t.Fatalf("step %d: %d flights expired, want %d", step, got, n)
			}
		}
		if c.inFlight != len(air) || c.orphans != len(late) || len(c.queries) != len(air)+len(late) {
			t.Fatalf("step %d: %d in flight and %d lost of %d; want %d and %d", step, c.inFlight, c.orphans, len(c.queries), len(air), len(late))
		}
		for id, q := range c.queries {
			if q != nil && (q.sentID() != id || q.conn != c) {
				t.Fatalf("step %d: under ID %d is a call with %d", step, id, q.sentID())
			}
		}
		if (len(c.queries) == 0) != c.owedSince.IsZero() && c.replies > 0 {
			t.Fatalf("step %d: with %d IDs in use a reply is owed since %v", step, len(c.queries), c.owedSince)
		}
	}
}

// TestExpireSetsTimer: the timer is set to the earliest deadline, and expired queries
// complete.
func TestExpireSetsTimer(t *testing.T) {
	now := time.Now()
	c := testConn(now)
	defer c.timer.Stop()
	var calls []*query
	for i := range 3 {
		q := fixedQuery(t)
		q.deadline = now.Add(time.Duration(3-i) * time.Hour)
		c.add(q, now)
		calls = append(calls, q)
		if !c.timerAt.Equal(q.deadline) {
			t.Errorf("the timer rings at %v, want %v", c.timerAt, q.deadline)
		}
	}
	if n := c.expire(now.Add(2 * time.Hour)); n != 2 || !c.timerAt.Equal(calls[0].deadline) {
		t.Errorf("%d flights ended, and the timer rings at %v; want 2, and the last one's time", n, c.timerAt)
	}
	for i, q := range calls {
		over, err := completed(q)
		if over != (i > 0) || over && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("call %d: landed %t, with %v", i, over, err)
		}
	}
}

// TestFrameReader: messages are read as sent, in whatever pieces they arrive, and a stream
// that ends inside of one returns an error.
func TestFrameReader(t *testing.T) {
	tests := []struct {
		name string
		sent []byte
		want []int // the lengths of the messages
		err  error
	}{
		{"nothing", nil, nil, io.EOF},
		{"one", []byte{0, 3, 1, 2, 3}, []int{3}, io.EOF},
		{"empty ones", make([]byte, 8), []int{0, 0, 0, 0}, io.EOF},
		{"half a length", []byte{0, 1, 7, 0}, []int{1}, io.ErrUnexpectedEOF},
		{"half a message", []byte{0, 1, 7, 0, 3, 1, 2}, []int{1}, io.ErrUnexpectedEOF},
		{"the longest, and one more", append(append([]byte{0xFF, 0xFF}, make([]byte, 0xFFFF)...), 0, 1, 7), []int{0xFFFF, 1}, io.EOF},
	}
	for _, tt := range tests {
		for _, piece := range []int{1, 2, 3, 1000, 100_000} {
			r := frameReader{buf: make([]byte, readBufSize)}
			conn := &bytesConn{left: tt.sent, piece: piece}
			var got []int
			var err error
			for err == nil {
				err = r.fill(conn)
				for msg, ok := r.next(); ok; msg, ok = r.next() {
					got = append(got, len(msg))
				}
			}
			if !errors.Is(err, tt.err) || len(got) != len(tt.want) {
				t.Errorf("%s in pieces of %d: messages of %v bytes, then %v; want %v and %v", tt.name, piece, got, err, tt.want, tt.err)
				continue
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("%s in pieces of %d: messages of %v bytes, want %v", tt.name, piece, got, tt.want)
				}
			}
			if r.grow(); len(r.buf) > maxKeptBuffer {
				t.Errorf("%s in pieces of %d: a buffer of %d bytes is kept", tt.name, piece, len(r.buf))
			}
		}
	}
}

// TestAsyncConn: a peer that does not read does not block the writer and finally gets all
// data; too much data is an error.
func TestAsyncConn(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	noError(t, err)
	defer l.Close()
	near, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	noError(t, err)
	far, err := l.AcceptTCP()
	noError(t, err)
	defer far.Close()
	var over []chan struct{}
	c, err := newAsyncConn(near, func(f func()) {
		end := make(chan struct{})
		over = append(over, end)
		go func() {
			defer close(end)
			f()
		}()
	})
	noError(t, err)
	defer c.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var sent []byte
	for {
		piece := make([]byte, 1+random.IntN(5000))
		for i := range piece {
			piece[i] = byte(random.Uint32())
		}
		if _, err := c.Write(piece); err != nil {
			if !errors.Is(err, errNotReading) {
				t.Fatal(err)
			}
			break
		}
		sent = append(sent, piece...)
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("of %d bytes the other end has not the same (%v)", len(sent), err)
	}
	eventually(t, "nothing is left", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.flushing && len(c.pending) == 0
	})
	if _, err := c.Write([]byte("more")); err != nil {
		t.Errorf("after all was read: %v", err)
	}
	c.Close()
	if _, err := c.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v, want net.ErrClosed", err)
	}
	for _, end := range over {
		<-end
	}
}

// deliverAndComplete processes msg like the reader of c, and reports whether it matched.
func deliverAndComplete(c *streamConn, msg []byte, now time.Time) bool {
	q, ok := c.deliver(msg, now)
	if q != nil {
		q.complete(nil)
	}
	return ok
}
