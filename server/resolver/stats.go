package resolver

import (
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
)

// source is the step of the path that made a reply.
type source uint8

const (
	fromServer source = iota // the path itself: REFUSED, BADVERS, a SERVFAIL
	fromHosts
	fromExternal
	fromCluster
	fromCache
	fromForward
	fromSearch
	fromLocal
	fromAny
	fromACL
	fromDNS64
	fromWhoami
	fromTemplate
	fromClientLimit
	fromChaos
	fromFile
	fromAuto
	fromSecondary
	fromTransfer
	fromGRPC
	fromAAAA
	fromPolicy
	fromRPZ
	fromTunnel
	sources
)

// sourceNames are the values of the plugin label: CoreDNS's names, client_limit, aaaa, dns_policy, rpz and tunnel.
var sourceNames = [sources]string{"", "hosts", "k8s_external", "kubernetes", "cache", "forward", "autopath", "local", "any", "acl", "dns64", "whoami", "template", "client_limit", "chaos", "file", "auto", "secondary", "transfer", "grpc", "aaaa", "dns_policy", "rpz", "tunnel"}

// Stats counts the queries of one zone on one address. Each reader has a stripe of counters
// with a lock that only a scrape contends for, so counting takes no label lookup and no atomic
// operation. It is safe for concurrent use.
type Stats struct {
	stripes []counters
	// private are the replies of upstreams with a private address: those passed on, and those replaced.
	private [2]atomic.Uint64
}

// PrivateAddresses returns the numbers of upstreams' replies with an address of `private_address` that were passed on,
// and that were replaced.
func (s *Stats) PrivateAddresses() (passed, denied uint64) {
	return s.private[0].Load(), s.private[1].Load()
}

// counters are the counters of one stripe.
type counters struct {
	mu        sync.Mutex
	requests  [transports][2][typeCount]uint64
	responses [rcodeCount][sources]uint64
	do        uint64
	viaSearch uint64
	localhost uint64
	verdicts  map[verdictKey]uint64 // nil until there is one
	duration  stat.LocalHistogram   // in nanoseconds
	reqSize   [transports]stat.LocalHistogram
	respSize  [transports]stat.LocalHistogram

	_ [64]byte // keeps the next lane's lock out of this one's cache line
}

// maxStripes bounds the memory of the counters, about 4 KiB a stripe. More readers share
// stripes.
const maxStripes = 16

// NewStats makes counters at zero.
func NewStats() *Stats {
	s := &Stats{stripes: make([]counters, min(runtime.NumCPU(), maxStripes))}
	for i := range s.stripes {
		c := &s.stripes[i]
		c.duration = stat.NewLocalHistogram(durations)
		for t := range transports {
			c.reqSize[t], c.respSize[t] = stat.NewLocalHistogram(sizes), stat.NewLocalHistogram(sizes)
		}
	}
	return s
}

// The bounds of the histograms, as whole numbers.
var (
	durations = whole(stat.DurationBuckets, nanoseconds)
	sizes     = whole(stat.SizeBuckets, 1)
)

const nanoseconds = 1e9

func whole(bounds []float64, perUnit float64) []uint64 {
	out := make([]uint64, len(bounds))
	for i, b := range bounds {
		out[i] = uint64(math.Round(b * perUnit))
	}
	return out
}

// count counts r and its reply of size bytes.
func (s *Stats) count(r *Request, size int) {
	family := 0
	if r.OverIPv6() {
		family = 1
	}
	c := &s.stripes[r.Stripe%len(s.stripes)]
	c.mu.Lock()
	defer c.mu.Unlock()
	proto := r.Proto.counted()
	c.requests[proto][family][typeIndex(r.Query.Type)]++
	c.responses[min(int(r.reply.Rcode()), rcodeCount-1)][r.source]++
	if r.Query.DO {
		c.do++
	}
	if r.viaSearch {
		c.viaSearch++
	}
	if r.verdicts != 0 {
		c.mark(r)
	}
	c.duration.Observe(uint64(r.Latency))
	c.reqSize[proto].Observe(uint64(len(r.Query.Packet)))
	c.respSize[proto].Observe(uint64(size))
}

// countReused counts n queries that were answered with the reused reply of h, each after latency.
func (s *Stats) countReused(h *HitCounter, stripe int, n uint64, latency time.Duration) {
	family := 0
	if h.v6 {
		family = 1
	}
	c := &s.stripes[stripe%len(s.stripes)]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[UDP][family][typeIndex(h.qtype)] += n
	c.responses[h.rcode][h.source] += n
	if h.do {
		c.do += n
	}
	if h.viaSearch {
		c.viaSearch += n
	}
	if h.verdict.verdict != 0 {
		c.countVerdict(h.verdict, n)
	}
	c.duration.ObserveMany(uint64(latency), n)
	c.reqSize[UDP].ObserveMany(uint64(len(h.own.query)), n)
	c.respSize[UDP].ObserveMany(uint64(h.size), n)
}

// each calls f for the counters of each stripe, which is locked.
func (s *Stats) each(f func(c *counters)) {
	for i := range s.stripes {
		c := &s.stripes[i]
		c.mu.Lock()
		f(c)
		c.mu.Unlock()
	}
}

// Duration returns the times from a query to its reply, in seconds.
func (s *Stats) Duration() stat.Snapshot {
	var sum stat.Snapshot
	s.each(func(c *counters) { sum = sum.Add(c.duration.Read(nanoseconds)) })
	return sum
}

// DO returns the number of queries with the DO bit.
func (s *Stats) DO() uint64 {
	var sum uint64
	s.each(func(c *counters) { sum += c.do })
	return sum
}

// ViaSearch returns the number of queries whose answer was further down the client's search
// path.
func (s *Stats) ViaSearch() uint64 {
	var sum uint64
	s.each(func(c *counters) { sum += c.viaSearch })
	return sum
}

// EachSize calls f for each protocol with queries, with the sizes of requests and responses in
// bytes.
func (s *Stats) EachSize(f func(proto string, req, resp stat.Snapshot)) {
	for t := range Proto(transports) {
		var req, resp stat.Snapshot
		s.each(func(c *counters) { req, resp = req.Add(c.reqSize[t].Read(1)), resp.Add(c.respSize[t].Read(1)) })
		if req.Count > 0 {
			f(t.String(), req, resp)
		}
	}
}

// EachRequest calls f for each combination of labels with queries. family is "1" for IPv4 and
// "2" for IPv6, as in CoreDNS.
func (s *Stats) EachRequest(f func(proto, family, qtype string, n uint64)) {
	var sum [transports][2][typeCount]uint64
	s.each(func(c *counters) {
		for t := range sum {
			for fam := range sum[t] {
				add(sum[t][fam][:], c.requests[t][fam][:])
			}
		}
	})
	for t := range sum {
		for fam := range sum[t] {
			for i, n := range sum[t][fam] {
				if n > 0 {
					f(Proto(t).String(), strconv.Itoa(fam+1), countedTypes[i].name, n)
				}
			}
		}
	}
}

// EachResponse calls f for each combination of labels with responses. plugin is the step that
// answered.
func (s *Stats) EachResponse(f func(rcode, plugin string, n uint64)) {
	var sum [rcodeCount][sources]uint64
	s.each(func(c *counters) {
		for rc := range sum {
			add(sum[rc][:], c.responses[rc][:])
		}
	})
	for rc := range sum {
		for src, n := range sum[rc] {
			if n > 0 {
				f(rcodeLabel(wire.Rcode(rc)), sourceNames[src], n)
			}
		}
	}
}

// rcodeLabel returns the value of the rcode label: the name of c, or RCODE and its number as in CoreDNS.
func rcodeLabel(c wire.Rcode) string {
	name := c.String()
	if _, named := wire.ParseRcode(name); !named {
		return "RCODE" + name
	}
	return name
}

// add adds more to sum, element by element.
func add(sum, more []uint64) {
	for i, n := range more {
		sum[i] += n
	}
}

// rcodeCount is one more than the last rcode with a name (BADCOOKIE, 23).
const rcodeCount = 24

// countedTypes are the values of the type label, which are CoreDNS's. All other types are "other", so that clients
// cannot create labels.
var countedTypes = [...]struct {
	qtype uint16
	name  string
}{
	{0, "other"}, {wire.TypeA, "A"}, {wire.TypeAAAA, "AAAA"}, {wire.TypeSRV, "SRV"}, {wire.TypePTR, "PTR"},
	{wire.TypeCNAME, "CNAME"}, {wire.TypeTXT, "TXT"}, {wire.TypeMX, "MX"}, {wire.TypeNS, "NS"}, {wire.TypeSOA, "SOA"},
	{wire.TypeHTTPS, "HTTPS"}, {wire.TypeSVCB, "SVCB"}, {wire.TypeANY, "ANY"}, {wire.TypeDS, "DS"},
	{wire.TypeDNSKEY, "DNSKEY"}, {wire.TypeRRSIG, "RRSIG"}, {wire.TypeNSEC, "NSEC"}, {wire.TypeNSEC3, "NSEC3"},
	{wire.TypeAXFR, "AXFR"}, {wire.TypeIXFR, "IXFR"},
}

const typeCount = len(countedTypes)

// typeIndex returns the index of qtype in countedTypes, which begins with the most frequent
// types.
func typeIndex(qtype uint16) int {
	for i := 1; i < typeCount; i++ {
		if countedTypes[i].qtype == qtype {
			return i
		}
	}
	return 0
}

// Sums are the counters of any number of zones. They take no allocation, so that they can be read often. The zero value is ready
// for use.
type Sums struct {
	// Cluster, Cache, Upstream and Others are the numbers of replies by the step that made them.
	Cluster, Cache, Upstream, Others uint64
	NXDomain, ServFail               uint64
	// Lookups is the number of queries that the cache or an upstream answered, and Hits how
	// many of them the cache answered. Both are without SERVFAIL.
	Lookups, Hits uint64
	// Durations are the numbers of replies by the bounds of [stat.DurationBuckets], not cumulative;
	// the last one is of longer times.
	Durations [17]uint64
}

// Queries returns the number of queries.
func (sum *Sums) Queries() uint64 { return sum.Cluster + sum.Cache + sum.Upstream + sum.Others }

// AddTo adds the counters of s to sum.
func (s *Stats) AddTo(sum *Sums) {
	for i := range s.stripes {
		c := &s.stripes[i]
		c.mu.Lock()
		for rcode := range c.responses {
			sum.addResponses(wire.Rcode(rcode), &c.responses[rcode])
		}
		c.duration.AddCounts(sum.Durations[:])
		c.mu.Unlock()
	}
}

func (sum *Sums) addResponses(rcode wire.Rcode, bySource *[sources]uint64) {
	var all uint64
	for _, n := range bySource {
		all += n
	}
	if all == 0 {
		return
	}
	upstream := bySource[fromForward] + bySource[fromGRPC]
	switch rcode {
	case wire.NXDomain:
		sum.NXDomain += all
	case wire.ServFail:
		sum.ServFail += all
	}
	if rcode != wire.ServFail {
		sum.Lookups, sum.Hits = sum.Lookups+bySource[fromCache]+upstream, sum.Hits+bySource[fromCache]
	}
	sum.Cluster += bySource[fromCluster]
	sum.Cache += bySource[fromCache]
	sum.Upstream += upstream
	sum.Others += all - bySource[fromCluster] - bySource[fromCache] - upstream
}

// verdictKey identifies a counter: queries on which a rule of zone came to verdict.
type verdictKey struct {
	zone    wire.Name
	verdict verdicts
}

// mark counts the verdicts on r. c is locked.
func (c *counters) mark(r *Request) {
	if r.verdicts&localhost != 0 {
		c.localhost++
	}
	verdict := r.verdicts & anyVerdict
	if verdict == 0 || verdict&(hidden|forbidden|byRule) != 0 { // which no ACL has decided
		return
	}
	c.countVerdict(verdictKey{r.rule, verdict}, 1)
}

// countVerdict counts n queries with that verdict. c is locked.
func (c *counters) countVerdict(k verdictKey, n uint64) {
	if c.verdicts == nil {
		c.verdicts = make(map[verdictKey]uint64)
	}
	c.verdicts[k] += n
}

// Localhosts returns the number of queries for names below localhost, or that begin with it.
func (s *Stats) Localhosts() uint64 {
	var sum uint64
	s.each(func(c *counters) { sum += c.localhost })
	return sum
}

// Mapped returns the number of queries answered with synthesized addresses.
func (s *Stats) Mapped() uint64 {
	var sum uint64
	s.each(func(c *counters) {
		for rc := range c.responses {
			sum += c.responses[rc][fromDNS64]
		}
	})
	return sum
}

// Verdicts are numbers of queries by the verdict of an ACL and the zone of its rule. CoreDNS
// has no zone label for allowed queries.
type Verdicts struct {
	Allowed                    uint64
	Blocked, Filtered, Dropped map[wire.Name]uint64 // nil if there are none
}

// Verdicts returns the verdicts so far.
func (s *Stats) Verdicts() (v Verdicts) {
	s.each(func(c *counters) {
		for k, n := range c.verdicts {
			switch k.verdict {
			case blocked:
				v.Blocked = plus(v.Blocked, k.zone, n)
			case filtered:
				v.Filtered = plus(v.Filtered, k.zone, n)
			case dropped:
				v.Dropped = plus(v.Dropped, k.zone, n)
			default:
				v.Allowed += n
			}
		}
	})
	return v
}

func plus(m map[wire.Name]uint64, zone wire.Name, n uint64) map[wire.Name]uint64 {
	if m == nil {
		m = make(map[wire.Name]uint64)
	}
	m[zone] += n
	return m
}
