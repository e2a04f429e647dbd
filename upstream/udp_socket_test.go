// Inside the package: the tests use a udpSocket without a transport.

package upstream

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// completed reports whether q has completed, and how.
func completed(q *query) (over bool, err error) {
	select {
	case <-q.done:
		return true, q.err
	default:
		return false, nil
	}
}

// TestUDPSocketAgainstModel applies random operations to a udpSocket and compares it with a
// list of the queries in flight.
func TestUDPSocketAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	start := time.Now()
	broken := errors.New("broken")
	s := udpSocket{total: new(int)}
	var air []*query
	drop := func(i int) *query {
		q := air[i]
		air[i] = air[len(air)-1]
		air = air[:len(air)-1]
		return q
	}
	for step := range 20_000 {
		switch op := random.IntN(100); {
		case op < 50 && len(air) < maxQueriesPerSocket:
			q := fixedQuery(t) // all have the same ID, so each needs a new one
			q.deadline = start.Add(time.Duration(random.IntN(1000)))
			s.add(q)
			air = append(air, q)
		case op < 80 && len(air) > 0:
			i := random.IntN(len(air))
			reply := answerA(append([]byte(nil), air[i].message()...))
			if op < 55 { // the right ID, another question
				reply[headerLen+1] ^= 1
				if s.deliver(reply) {
					t.Fatalf("step %d: a reply to another question is taken", step)
				}
				break
			}
			if !s.deliver(reply) {
				t.Fatalf("step %d: the reply is not taken", step)
			}
			q := drop(i)
			if over, err := completed(q); err != nil || !over || string(q.reply[:q.replyLen]) != string(reply) {
				t.Fatalf("step %d: the call landed %t, with %v and %x", step, over, err, q.reply[:q.replyLen])
			}
			if s.deliver(reply) {
				t.Fatalf("step %d: the reply is taken twice", step)
			}
		case op < 90 && len(air) > 0:
			s.remove(s.indexOf(drop(random.IntN(len(air))).sentID()))
		case op < 98:
			now := start.Add(time.Duration(random.IntN(1000)))
			next := s.expire(now)
			var first time.Time
			for i := len(air) - 1; i >= 0; i-- {
				if until := air[i].deadline; until.After(now) {
					if first.IsZero() || until.Before(first) {
						first = until
					}
				} else if over, err := completed(drop(i)); !over || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("step %d: a call whose time is over: landed %t, with %v", step, over, err)
				}
			}
			if !next.Equal(first) {
				t.Fatalf("step %d: the next call expires at %v, want %v", step, next, first)
			}
		case op == 99:
			s.failAll(broken)
			for len(air) > 0 {
				if over, err := completed(drop(0)); !over || !errors.Is(err, broken) {
					t.Fatalf("step %d: a call on a broken port: landed %t, with %v", step, over, err)
				}
			}
		}
		checkUDPSocket(t, &s, air)
	}
}

// checkUDPSocket compares the queries in flight on s with air.
func checkUDPSocket(t *testing.T, s *udpSocket, air []*query) {
	t.Helper()
	if s.inFlight != len(air) {
		t.Fatalf("%d calls in flight, want %d", s.inFlight, len(air))
	}
	ids := map[uint16]bool{}
	for _, q := range air {
		i := s.indexOf(q.sentID())
		if i < 0 || s.queries[i] != q {
			t.Fatalf("ID %d leads to another call", q.sentID())
		}
		if over, _ := completed(q); over {
			t.Fatal("a call in flight has landed")
		}
		ids[q.sentID()] = true
	}
	if len(ids) != len(air) {
		t.Fatalf("%d calls have %d IDs", len(air), len(ids))
	}
	for _, q := range s.queries[s.inFlight:] {
		if q != nil {
			t.Fatal("a call that has landed is held")
		}
	}
}

// TestBatch reads what is available, with and without recvmmsg, and detects an empty and a
// failed socket.
func TestBatch(t *testing.T) {
	for name, plain := range map[string]bool{"recvmmsg": false, "recvfrom": true} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
			noError(t, err)
			defer unix.Close(fds[1])
			b := newBatch()
			b.noRecvmmsg = plain
			read := func(want int) {
				t.Helper()
				if n, err := b.read(uintptr(fds[1])); n != want || err != nil {
					t.Fatalf("%d datagrams read, %v; want %d", n, err, want)
				}
			}
			read(0)
			for i := range batchSize + 3 {
				msg := make([]byte, 2+i)
				binary.BigEndian.PutUint16(msg, uint16(i))
				noError(t, sendDatagram(uintptr(fds[0]), msg))
			}
			for _, round := range []struct{ first, n int }{{0, batchSize}, {batchSize, 3}} {
				read(round.n)
				for i := range round.n {
					msg, nth := b.datagram(i), round.first+i
					if len(msg) != 2+nth || int(binary.BigEndian.Uint16(msg)) != nth {
						t.Errorf("datagram %d is %x", nth, msg)
					}
				}
			}
			noError(t, sendDatagram(uintptr(fds[0]), make([]byte, 2*maxDatagram)))
			read(1)
			count(t, len(b.datagram(0)), maxDatagram+1, "bytes of a datagram that is longer than any")
			unix.Close(fds[0])
			if err := sendDatagram(uintptr(fds[1]), []byte{1}); err == nil {
				t.Error("sending to a closed socket is no error")
			}
			if b.noRecvmmsg != plain {
				t.Error("the way of reading has changed")
			}
		})
	}
	if _, err := newBatch().read(^uintptr(0)); !errors.Is(err, unix.EBADF) {
		t.Errorf("reading what is no socket: %v, want EBADF", err)
	}
}

// TestProbeReply: any message with its ID answers a probe.
func TestProbeReply(t *testing.T) {
	q := fixedQuery(t)
	q.probe = true
	s := udpSocket{total: new(int)}
	s.add(q)
	reply := make([]byte, headerLen)
	copy(reply, q.message()[:2])
	if s.deliver(reply) {
		t.Error("a query is taken for a reply")
	}
	reply[2] |= qrBit
	if wire.Matches(reply, q.message()) || !s.deliver(reply) {
		t.Error("a bare header with the probe's ID is not taken")
	}
}
