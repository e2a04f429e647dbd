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

	"github.com/nodens-dns/nodens/internal/share"
)

// testLink is a link without a connection, whose timer never rings.
func testLink(now time.Time) *streamConn {
	l := newStreamConn(now, new(share.Division))
	l.cancel = func() {}
	l.timer = time.AfterFunc(time.Hour, func() {})
	l.conn = &bytesConn{}
	return l
}

// TestLinkAgainstModel flies calls on a link in random order and holds what comes of
// each against a list of those that should be in the air, and of the IDs to which a
// reply may come still.
func TestLinkAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	start := time.Now()
	l := testLink(start)
	defer l.timer.Stop()
	var air []*query
	var late [][]byte // replies that nobody waits for
	reply := func(c *query) []byte { return address(append([]byte(nil), c.message()...)) }
	drop := func(i int) *query {
		c := air[i]
		air[i] = air[len(air)-1]
		air = air[:len(air)-1]
		return c
	}
	for step := range 20_000 {
		l.writeBuf = l.writeBuf[:0]
		now := start.Add(time.Duration(step) * time.Microsecond)
		switch op := random.IntN(100); {
		case op < 45 && len(l.queries) < 200:
			c := fixedCall(t) // all have the same ID, so that each must draw another
			c.deadline = now.Add(time.Hour + time.Duration(random.IntN(1000)))
			l.add(c, now)
			if !bytes.Equal(l.writeBuf, c.frame) {
				t.Fatalf("step %d: queued is %x, the query %x", step, l.writeBuf, c.frame)
			}
			air = append(air, c)
		case op < 70 && len(air) > 0:
			c := drop(random.IntN(len(air)))
			msg := reply(c)
			msg[headerLen+1] ^= 1
			if arrive(l, msg, now) {
				t.Fatalf("step %d: a reply to another question is taken", step)
			}
			msg[headerLen+1] ^= 1
			if !arrive(l, msg, now) {
				t.Fatalf("step %d: the reply is not taken", step)
			}
			if over, err := landed(c); err != nil || !over || !bytes.Equal(c.reply[:c.replyLen], msg) {
				t.Fatalf("step %d: the call landed %t, with %v and %x", step, over, err, c.reply[:c.replyLen])
			}
			if arrive(l, msg, now) {
				t.Fatalf("step %d: the reply is taken twice", step)
			}
		case op < 85 && len(air) > 0:
			c := drop(random.IntN(len(air)))
			late = append(late, reply(c))
			l.orphan(c)
		case op < 95 && len(late) > 0:
			i := random.IntN(len(late))
			if !arrive(l, late[i], now) {
				t.Fatalf("step %d: a reply that comes late is a stray", step)
			}
			if arrive(l, late[i], now) {
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
			if got := l.expire(at); got != n {
				t.Fatalf("step %d: %d flights expired, want %d", step, got, n)
			}
		}
		if l.inFlight != len(air) || l.orphans != len(late) || len(l.queries) != len(air)+len(late) {
			t.Fatalf("step %d: %d in flight and %d lost of %d; want %d and %d", step, l.inFlight, l.orphans, len(l.queries), len(air), len(late))
		}
		for id, c := range l.queries {
			if c != nil && (c.sentID() != id || c.conn != l) {
				t.Fatalf("step %d: under ID %d is a call with %d", step, id, c.sentID())
			}
		}
		if (len(l.queries) == 0) != l.owedSince.IsZero() && l.answered {
			t.Fatalf("step %d: with %d IDs in use a reply is owed since %v", step, len(l.queries), l.owedSince)
		}
	}
}

// TestExpireRings: the timer is set to the first deadline, and all that are over end.
func TestExpireRings(t *testing.T) {
	now := time.Now()
	l := testLink(now)
	defer l.timer.Stop()
	var calls []*query
	for i := range 3 {
		c := fixedCall(t)
		c.deadline = now.Add(time.Duration(3-i) * time.Hour)
		l.add(c, now)
		calls = append(calls, c)
		if !l.timerAt.Equal(c.deadline) {
			t.Errorf("the timer rings at %v, want %v", l.timerAt, c.deadline)
		}
	}
	if n := l.expire(now.Add(2 * time.Hour)); n != 2 || !l.timerAt.Equal(calls[0].deadline) {
		t.Errorf("%d flights ended, and the timer rings at %v; want 2, and the last one's time", n, l.timerAt)
	}
	for i, c := range calls {
		over, err := landed(c)
		if over != (i > 0) || over && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("call %d: landed %t, with %v", i, over, err)
		}
	}
}

// TestFrames: messages come out as they went in, whatever pieces they arrive in, and
// a stream that ends inside one says so.
func TestFrames(t *testing.T) {
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
			f := frameReader{buf: make([]byte, readBufSize)}
			conn := &bytesConn{left: tt.sent, piece: piece}
			var got []int
			var err error
			for err == nil {
				err = f.fill(conn)
				for msg, ok := f.next(); ok; msg, ok = f.next() {
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
			if f.grow(); len(f.buf) > maxKeptBuffer {
				t.Errorf("%s in pieces of %d: a buffer of %d bytes is kept", tt.name, piece, len(f.buf))
			}
		}
	}
}

// TestPipe: what the other end does not read does not hold up who writes, and it gets
// all of it in the end; what is too much is refused.
func TestPipe(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	var over []chan struct{}
	p, err := newAsyncConn(near, func(f func()) {
		end := make(chan struct{})
		over = append(over, end)
		go func() {
			defer close(end)
			f()
		}()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var sent []byte
	for {
		piece := make([]byte, 1+random.IntN(5000))
		for i := range piece {
			piece[i] = byte(random.Uint32())
		}
		if _, err := p.Write(piece); err != nil {
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
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.flushing && len(p.pending) == 0
	})
	if _, err := p.Write([]byte("more")); err != nil {
		t.Errorf("after all was read: %v", err)
	}
	p.Close()
	if _, err := p.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v, want net.ErrClosed", err)
	}
	for _, end := range over {
		<-end
	}
}

// arrive takes msg as the reader of l does, and reports whether it was no stray.
func arrive(l *streamConn, msg []byte, now time.Time) bool {
	c, ok := l.deliver(msg, now)
	if c != nil {
		c.complete(nil)
	}
	return ok
}
