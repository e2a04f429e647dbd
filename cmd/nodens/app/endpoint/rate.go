package endpoint

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
)

const (
	// maxHTTPRate bounds the requests that one client address gets answered in a second, and maxHTTPBurst those at
	// once. Further ones wait for their turn on their connections, of which the client has few. A scraper and
	// the kubelet send one in some seconds.
	maxHTTPRate  = 50
	maxHTTPBurst = 50
	// httpInterval is the time between two requests at maxHTTPRate.
	httpInterval = time.Second / maxHTTPRate
	// minHTTPPrune is the number of clients from which on those that are within their rate are forgotten.
	minHTTPPrune = 256
)

// httpRates spaces the requests of each client. The zero value is ready. It is safe for concurrent use.
type httpRates struct {
	mu sync.Mutex
	// next is when the client's next request would be on time at maxHTTPRate, by package clock. A client whose
	// time has come is as good as a new one.
	next  map[netip.Addr]time.Duration
	prune int // the number of clients at which to look for those
}

// wait waits for the turn of a request of the client. It returns false if ctx ends first.
func (x *httpRates) wait(ctx context.Context, client netip.Addr) bool {
	delay := x.claim(client, clock.Now())
	if delay <= 0 {
		return true
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		x.giveBack(client)
		return false
	}
}

// claim claims the next turn of the client, and returns how long that is from now.
func (x *httpRates) claim(client netip.Addr, now time.Duration) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.next == nil {
		x.next, x.prune = make(map[netip.Addr]time.Duration), minHTTPPrune
	}
	if len(x.next) >= x.prune {
		for c, next := range x.next {
			if next <= now {
				delete(x.next, c)
			}
		}
		x.prune = max(minHTTPPrune, 2*len(x.next))
	}
	next := max(x.next[client], now)
	x.next[client] = next + httpInterval
	return next - now - (maxHTTPBurst-1)*httpInterval
}

// giveBack gives a turn back that the client does not need.
func (x *httpRates) giveBack(client netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if next, ok := x.next[client]; ok {
		x.next[client] = next - httpInterval
	}
}
