// Package tunnel finds clients that may send data to a name server in the names of their queries.
//
// A name with data in it is asked for once, so it is in no cache: only queries that are forwarded are counted. A [Detector] counts, for
// each client and registered domain, the different names below the domain and the bytes of these names within a window of time. A client
// with many of both is suspected until a whole window has passed without.
//
// Memory is bounded: different names are estimated by the bits that their hashes set in a bitmap (linear counting), and if all places of
// the table are taken, the pair with the fewest names of a few random ones loses its place. A tunnel has many.
package tunnel

import (
	"hash/maphash"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxPairs bounds the pairs of a client and a domain, of some 400 bytes each.
	maxPairs = 2048
	// evictFrom is how many of them are compared when one has to go.
	evictFrom = 16
	// bitmapBits is the size of a pair's bitmap. The estimate is good to a few percent up to 5,000 names.
	bitmapBits = 2048
)

// Options holds what a [Detector] needs beside its directive.
type Options struct {
	// Logger gets a warning for each new suspect; nil discards them.
	Logger *slog.Logger
	// Owner returns whose an address is. It is called for suspects only, with a lock held; nil: it is not known.
	Owner func(netip.Addr) Owner
}

// Owner is whose an address is: a pod, or (host) or (unknown) as the namespace.
type Owner struct{ Namespace, Pod, UID string }

// Detector counts the queries of one server block. It is created by [New] and safe for concurrent use.
type Detector struct {
	cfg  config.Tunnel
	opts Options
	seed maphash.Seed
	// zeros is how many bits of a bitmap are not set when it has as many names as a suspect.
	zeros   int
	limited atomic.Uint64

	mu    sync.Mutex
	pairs map[key]*pair
	list  []*pair
}

type key struct {
	client netip.Addr
	domain string
}

// pair is a client and a domain. Times are by package clock.
type pair struct {
	key
	began time.Duration // the window in which the names are counted
	zeros int           // bits that are not set
	bytes int
	seen  [bitmapBits / 64]uint64
	until time.Duration // the client is suspected; 0: it is not
	owner Owner
	full  time.Duration // when the bucket of the limit is full again
}

// New returns the detector of cfg.
func New(cfg *config.Tunnel, opts Options) *Detector {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Owner == nil {
		opts.Owner = func(netip.Addr) Owner { return Owner{} }
	}
	return &Detector{
		cfg: *cfg, opts: opts, seed: maphash.MakeSeed(), pairs: make(map[key]*pair),
		zeros: int(bitmapBits * math.Exp(-float64(cfg.Names)/bitmapBits)),
	}
}

// Observe counts a query that a client has to ask upstreams for, at a time by package clock. name is in lower case and wire form. It reports
// whether the query is over the limit of a suspect, and must not be forwarded. A nil Detector counts nothing.
func (d *Detector) Observe(client netip.Addr, name []byte, now time.Duration) (limited bool) {
	if d == nil {
		return false
	}
	size := registered(name)
	if size == 0 || size == len(name) || slices.ContainsFunc(d.cfg.Except, func(zone wire.Name) bool { return wire.Under(name, zone) }) {
		return false
	}
	below, domain := name[:len(name)-size], name[len(name)-size:]
	h := maphash.Bytes(d.seed, below)
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pair(key{client.Unmap(), string(domain)}, now)
	p.count(h, len(below))
	if p.zeros <= d.zeros && p.bytes >= d.cfg.Bytes {
		d.suspect(p)
	}
	return p.until != 0 && d.over(p, now)
}

// registered returns the size of the domain in name that was registered: a label in front of a public suffix. It is 0 for a name that has no
// such domain.
func registered(name []byte) int {
	var text [wire.MaxName]byte
	n := copy(text[:], name)
	for at := 0; name[at] != 0; at += 1 + int(name[at]) { // dots within labels are not those between labels
		for i := at + 1; i <= at+int(name[at]); i++ {
			if text[i] == '.' {
				text[i] = '_'
			}
		}
		text[at] = '.'
	}
	if n < 3 {
		return 0
	}
	full := string(text[1 : n-1])
	suffix, _ := publicsuffix.PublicSuffix(full)
	front := strings.TrimSuffix(full[:len(full)-len(suffix)], ".")
	if front == "" {
		return 0
	}
	return len(full) - strings.LastIndexByte(front, '.') - 1 + 2 // a length for the first dot, and the root
}

// pair returns the pair of k, in the window of now.
func (d *Detector) pair(k key, now time.Duration) *pair {
	p := d.pairs[k]
	if p == nil {
		p = d.place(now)
		*p = pair{key: k, began: now, zeros: bitmapBits}
		d.pairs[k] = p
	}
	if p.until != 0 && (now >= p.until || d.opts.Owner(p.client) != p.owner) {
		*p = pair{key: k, began: now, zeros: bitmapBits}
	}
	if now-p.began >= d.cfg.Window {
		*p = pair{key: k, began: now, zeros: bitmapBits, until: p.until, owner: p.owner, full: p.full}
	}
	return p
}

// place returns a place for a new pair: that of another one if there are too many.
func (d *Detector) place(now time.Duration) *pair {
	if len(d.list) < maxPairs {
		d.list = append(d.list, new(pair))
		return d.list[len(d.list)-1]
	}
	p := d.list[rand.IntN(maxPairs)]
	for range evictFrom - 1 {
		if other := d.list[rand.IntN(maxPairs)]; d.weight(other, now) < d.weight(p, now) {
			p = other
		}
	}
	delete(d.pairs, p.key)
	return p
}

// weight returns what speaks for keeping p.
func (d *Detector) weight(p *pair, now time.Duration) int {
	switch {
	case p.until > now:
		return bitmapBits + 1
	case now-p.began >= d.cfg.Window:
		return -1
	}
	return bitmapBits - p.zeros
}

// count counts a name with this hash and size.
func (p *pair) count(h uint64, size int) {
	p.bytes += size
	word, bit := &p.seen[h%uint64(len(p.seen))], uint64(1)<<(h>>32%64)
	if *word&bit == 0 {
		*word |= bit
		p.zeros--
	}
}

// names estimates the different names of p.
func (p *pair) names() int {
	return int(math.Round(-bitmapBits * math.Log(max(float64(p.zeros), 0.5)/bitmapBits)))
}

// suspect makes p's client a suspect until the window after this one ends.
func (d *Detector) suspect(p *pair) {
	if p.until == 0 {
		p.owner = d.opts.Owner(p.client)
		d.opts.Logger.Warn("a client may send data in the names of its queries", "client", p.client.String(), "namespace", p.owner.Namespace,
			"pod", p.owner.Pod, "domain", wire.Name(p.domain).String(), "names", p.names(), "bytes", p.bytes)
	}
	p.until = p.began + 2*d.cfg.Window
}

// over counts a query of a suspect, and reports whether it is over the limit.
func (d *Detector) over(p *pair, now time.Duration) bool {
	if d.cfg.Limit == 0 {
		return false
	}
	if p.full-now >= time.Second { // the rate is also the burst
		d.limited.Add(1)
		return true
	}
	p.full = max(p.full, now) + time.Second/time.Duration(d.cfg.Limit)
	return false
}

// Limited returns the number of queries over the limit.
func (d *Detector) Limited() uint64 { return d.limited.Load() }

// Suspect is a client that is suspected.
type Suspect struct {
	Client netip.Addr
	Owner  Owner
	// Domain has Names different names, in Bytes bytes, since the last window began.
	Domain       wire.Name
	Names, Bytes int
}

// Suspects returns the suspects at a time by package clock, in the order of their addresses.
func (d *Detector) Suspects(now time.Duration) (list []Suspect) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.list {
		if p.until > now && d.opts.Owner(p.client) == p.owner {
			list = append(list, Suspect{Client: p.client, Owner: p.owner, Domain: wire.Name(p.domain), Names: p.names(), Bytes: p.bytes})
		}
	}
	slices.SortFunc(list, func(a, b Suspect) int {
		if c := a.Client.Compare(b.Client); c != 0 {
			return c
		}
		return strings.Compare(string(a.Domain), string(b.Domain))
	})
	return list
}
