// Inside the package: the tests count the sockets of a transport.

package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/pollset"
)

// readSet returns a set whose sockets a goroutine reads until the test ends.
func readSet(t *testing.T) *pollset.Set {
	t.Helper()
	set := new(pollset.Set)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for p := pollset.NewPoller(set); ; {
			select {
			case <-stop:
				return
			default:
				_, _ = p.Wait(-1, time.Millisecond, false)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return set
}

// sockets returns how many sockets of the transport are open, in sets and outside of them.
func (t *udpTransport) sockets() (shared, others int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.live {
		if s.sharedSocket != nil {
			shared++
		} else {
			others++
		}
	}
	return shared, others
}

// TestReadBy: the goroutine that starts exchanges reads their replies. Each socket is used for the usual number of queries, and closed
// after that.
func TestReadBy(t *testing.T) {
	f := startFake(t, answerOK)
	p := newPool(t, longTimeout(f))
	via := p.servers()[0].udp.(*udpTransport)
	set := readSet(t)
	const queries = 3 * maxQueriesPerSocket
	ready := 0
	for i := range queries {
		s := startReadBy(t, p, fmt.Sprintf("n%d.test.", i), set)
		if err := <-s.result; err != nil || s.answer.Answers != 1 {
			t.Fatalf("%d answers, %v", s.answer.Answers, err)
		}
		ready += int(s.ready.Load())
	}
	if ready < queries/2 { // the other replies were late, or came before the exchange was parked
		t.Errorf("Ready was called for %d of %d queries", ready, queries)
	}
	if n := set.Expected(); n != 0 {
		t.Errorf("%d replies are expected when all have come", n)
	}
	_, others := via.sockets()
	_, opened := via.reuse()
	if diff := cmp.Diff([]int{0, queries / maxQueriesPerSocket}, []int{others, int(opened)}); diff != "" {
		t.Errorf("sockets outside of the set, and opened (-want +got):\n%s", diff)
	}
	if s, _ := via.sockets(); s > 1 {
		t.Errorf("%d sockets are open although one is enough", s)
	}
}

// startReadBy is startParked on the sockets of a set.
func startReadBy(t *testing.T, p *Pool, name string, set *pollset.Set) *started {
	t.Helper()
	return startParkedOn(t, t.Context(), p, name, From{}, set)
}

// TestReadByEnds: what ends queries on sockets in a set without a reply, and that no socket is left by it.
func TestReadByEnds(t *testing.T) {
	closed := netip.MustParseAddrPort("127.0.0.1:9") // discard: no server listens there
	for _, test := range []struct {
		name string
		// act is what happens after the query is sent.
		act  func(p *Pool)
		addr netip.AddrPort // of the server; a silent one if it is invalid
		want error
	}{
		{name: "the read timeout", act: func(*Pool) {}, want: ErrTimeout},
		{name: "an ICMP message", act: func(*Pool) {}, addr: closed, want: ErrLocal},
		{name: "the end of the pool", act: func(p *Pool) { p.Close() }, want: ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			var silent atomic.Uint64
			f := startFake(t, func(request) { silent.Add(1) })
			cfg := longTimeout(f)
			cfg.ReadTimeout = 200 * time.Millisecond
			if test.addr.IsValid() {
				cfg.To[0].Addr = test.addr
			}
			p := newPool(t, cfg)
			via := p.servers()[0].udp.(*udpTransport)
			s := startReadBy(t, p, "held.test.", readSet(t))
			test.act(p)
			if err := <-s.result; !errors.Is(err, test.want) {
				t.Errorf("the exchange ends with %v, want %v", err, test.want)
			}
			if n := s.resumed.Load(); n > 1 { // not at all if that was before the exchange was parked
				t.Errorf("Resume was called %d times", n)
			}
			via.closeIdle(time.Now().Add(time.Hour))
			eventually(t, "no socket is open", func() bool {
				shared, _ := via.sockets()
				return shared == 0
			})
		})
	}
}

// TestClosedSets: a Pool that outlives the listeners of many reloads keeps none of their sets.
func TestClosedSets(t *testing.T) {
	p := newPool(t, longTimeout(startFake(t, answerOK)))
	for i := range 5 {
		set := readSet(t)
		if err := <-startReadBy(t, p, fmt.Sprintf("n%d.test.", i), set).result; err != nil {
			t.Fatal(err)
		}
		set.Close()
	}
	p.parkedMu.Lock()
	defer p.parkedMu.Unlock()
	if n := len(p.parkedBy); n > 1 {
		t.Errorf("the pool keeps %d of 5 sets", n)
	}
}

// TestSendErrors: what the kernel has queued about a query that can't be sent is read, even after the last attempt. Else the socket, on
// which another query is in flight, would be readable for as long.
func TestSendErrors(t *testing.T) {
	f := startFake(t, ignore)
	via := newUDPTransport(f.addr, udpOptions{maxInFlight: 8, maxOpen: 1, expire: time.Hour}, new(atomic.Uint64))
	t.Cleanup(via.close)
	set := new(pollset.Set)
	inFlight, tooLong := fixedQuery(t), fixedQuery(t)
	tooLong.frame = append(tooLong.frame, make([]byte, 65520-len(tooLong.frame))...) // too long together with the headers
	for _, q := range []*query{inFlight, tooLong} {
		q.readBy, q.deadline = set, time.Now().Add(time.Hour)
		via.start(q)
	}
	if over, err := completed(tooLong); !over || !errors.Is(err, syscall.EMSGSIZE) {
		t.Fatalf("the query that is too long is over: %t, with %v", over, err)
	}
	for p := pollset.NewPoller(set); ; {
		switch e, errno := p.Wait(-1, 10*time.Millisecond, false); errno {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return
		default:
			t.Fatalf("the wait ends with %+v, %v", e, errno)
		}
	}
}
