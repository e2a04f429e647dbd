package cache

import (
	"context"
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// outageThreshold is how many domains fail in a row before the upstreams are taken to be
	// down, and not the domains broken.
	outageThreshold = 4
	// maxFailedDomains is how many of them are remembered; of one client, at most outageThreshold.
	maxFailedDomains = 16
)

// failureRun is the domains for whose names no server has answered since the last reply. One tenant's broken domains must not
// make others get expired answers: a domain counts once, however many of its names fail, and a client's domains count for other
// clients up to half of the threshold. It is safe for concurrent use.
type failureRun struct {
	count atomic.Int32 // length of domains

	mu      sync.Mutex
	domains []failedDomain
}

type failedDomain struct {
	domain uint64 // the hash of its name
	client netip.Addr
}

// domainSeed hides which domains collide.
var domainSeed = maphash.MakeSeed()

// add adds the domain of name, for which client has got no answer in time. client is invalid if none is known.
func (f *failureRun) add(name []byte, client netip.Addr) {
	domain := maphash.Bytes(domainSeed, wire.ParentDomain(name))
	f.mu.Lock()
	defer f.mu.Unlock()
	own := 0
	for _, d := range f.domains {
		if d.domain == domain {
			return
		}
		if d.client == client {
			own++
		}
	}
	if own < outageThreshold && len(f.domains) < maxFailedDomains {
		f.domains = append(f.domains, failedDomain{domain, client})
		f.count.Store(int32(len(f.domains)))
	}
}

// reset ends the run, and reports whether it was long enough for an outage.
func (f *failureRun) reset() bool {
	if f.count.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.domains)
	f.domains = f.domains[:0]
	f.count.Store(0)
	return n >= outageThreshold
}

// outage reports whether the upstreams seem to be down to all clients.
func (f *failureRun) outage() bool { return f.count.Load() >= outageThreshold }

// outageFor reports whether the upstreams seem to be down to the client that ctx belongs to.
func (f *failureRun) outageFor(ctx context.Context) bool {
	if !f.outage() {
		return false
	}
	client := share.AddrOf(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for i, d := range f.domains {
		others := 0
		for _, before := range f.domains[:i] {
			if before.client == d.client {
				others++
			}
		}
		if d.client == client || others < outageThreshold/2 {
			n++
		}
	}
	return n >= outageThreshold
}
