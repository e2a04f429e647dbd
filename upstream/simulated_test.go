// Inside the package: the transport of a server is replaced by one without sockets, so that time can be simulated.

package upstream

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// simulated is a transport to a server that replies to each query after a delay, unless the network drops it. It is for
// synctest bubbles: it has no sockets.
type simulated struct {
	delay  time.Duration
	silent bool
	// lose says whether the network drops a query; nil drops none. It is called with mu locked.
	lose func(now time.Time) bool
	// refuse says whether the server can't be reached; nil: it always can. It is called with mu locked.
	refuse func(now time.Time) bool
	// failure is the error then; nil means that the connection is refused.
	failure error
	// delayFor is the delay for a client, in place of delay; nil: delay is for all.
	delayFor func(c share.Client) time.Duration

	mu      sync.Mutex
	sent    []sentQuery
	lost    []time.Time
	pending map[*query]*time.Timer
}

// sentQuery is a query that has left, whatever became of it.
type sentQuery struct {
	at     time.Time
	client share.Client
}

func newSimulated(delay time.Duration) *simulated {
	return &simulated{delay: delay, pending: make(map[*query]*time.Timer)}
}

func (s *simulated) start(q *query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.sent = append(s.sent, sentQuery{now, q.client})
	after, err := s.delay, error(nil)
	if s.delayFor != nil {
		after = s.delayFor(q.client)
	}
	if lost := s.lose != nil && s.lose(now); lost || s.silent {
		if after, err = q.deadline.Sub(now), os.ErrDeadlineExceeded; lost {
			s.lost = append(s.lost, now)
		}
	}
	if s.refuse != nil && s.refuse(now) {
		after, err = 100*time.Microsecond, cmp.Or[error](s.failure, syscall.ECONNREFUSED)
	}
	s.pending[q] = time.AfterFunc(after, func() { s.finish(q, err) })
}

// finish completes q with err, or with one A record and a TTL of 300 seconds.
func (s *simulated) finish(q *query, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pending[q]; !ok {
		return
	}
	delete(s.pending, q)
	if err == nil {
		end := headerLen + 5
		for q.message()[end-5] != 0 {
			end++
		}
		b := append([]byte(nil), q.message()[:end]...)
		b[2] |= qrBit
		binary.BigEndian.PutUint16(b[6:], 1)
		binary.BigEndian.PutUint16(b[10:], 0)
		b = append(b, 0xc0, headerLen, 0, 1, 0, 1, 0, 0, 300>>8, 300&0xff, 0, 4, 192, 0, 2, 1)
		q.storeDatagram(b)
	}
	q.complete(err)
}

func (s *simulated) cancel(q *query) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.pending[q]
	if ok {
		t.Stop()
		delete(s.pending, q)
	}
	return ok
}

func (s *simulated) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for q, t := range s.pending {
		t.Stop()
		q.complete(ErrClosed)
	}
	clear(s.pending)
}

func (s *simulated) closeIdle(time.Time)          {}
func (s *simulated) reuse() (hits, misses uint64) { return 0, 0 }
func (s *simulated) queries() []sentQuery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sentQuery(nil), s.sent...)
}
func (s *simulated) countBetween(from, to time.Time) (n int) {
	for _, q := range s.queries() {
		if !q.at.Before(from) && q.at.Before(to) {
			n++
		}
	}
	return n
}

// mostInOneSecond returns the most queries that have left within any second.
func (s *simulated) mostInOneSecond() (most int) {
	list := s.queries()
	first := 0
	for i := range list {
		for list[i].at.Sub(list[first].at) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// simulatedTo returns a directive with one upstream for each address, without probes.
func simulatedTo(m config.MaxRate, to ...string) *config.Forward {
	cfg := &config.Forward{From: wire.Root, Policy: config.PolicySequential, ReadTimeout: 2 * time.Second, MaxRate: m}
	for _, a := range to {
		cfg.To = append(cfg.To, config.Target{Addr: netip.MustParseAddrPort(a)})
	}
	return cfg
}

// newSimulatedPool returns a Pool whose servers are simulated, over UDP by via. TCP loses nothing. The caller closes it in its bubble.
func newSimulatedPool(cfg *config.Forward, opts Options, via ...*simulated) *Pool {
	p := New(cfg, opts)
	for i, s := range p.servers() {
		s.udp.close()
		s.tcp.close()
		s.udp, s.tcp = via[i], newSimulated(via[i].delay)
	}
	return p
}

// offer has a client ask for unique names at a rate, for a time, and calls result with the end of each exchange. It returns
// when all have ended.
func offer(t *testing.T, p *Pool, c share.Client, perSecond int, d time.Duration, result func(took time.Duration, err error)) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := range int(d.Seconds() * float64(perSecond)) {
		<-tick.C
		q := question(t, fmt.Sprintf("n%d.c%d.test.", i, c))
		all.Go(func() {
			start := time.Now()
			_, err := p.ExchangeFrom(context.Background(), q, From{Client: c, Addr: clientAddr(c)})
			result(time.Since(start), err)
		})
	}
}

func clientAddr(c share.Client) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(c)}) }

// mustBe fails the test if err is not want.
func mustBe(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
