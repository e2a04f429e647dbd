package server

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
)

// source is which step of the path wrote a reply.
type source uint8

const (
	fromServer source = iota // the path itself: REFUSED, BADVERS, a SERVFAIL
	fromHosts
	fromCluster
	fromCache
	fromForward
	sources
)

// sourceNames are the plugin label's values: CoreDNS's names of what does the
// same there.
var sourceNames = [sources]string{"", "hosts", "kubernetes", "cache", "forward"}

// Stats counts the queries of one zone on one address. Counting takes no label
// look-up; reading is for scrapes.
type Stats struct {
	requests  [transports][2][typeCount]atomic.Uint64
	responses [rcodeCount][sources]atomic.Uint64
	do        atomic.Uint64
	duration  *stat.Histogram
	reqSize   [transports]*stat.Histogram
	respSize  [transports]*stat.Histogram
}

// NewStats makes counters at zero.
func NewStats() *Stats {
	s := &Stats{duration: stat.NewHistogram(stat.Seconds)}
	for t := range transports {
		s.reqSize[t] = stat.NewHistogram(stat.Bytes)
		s.respSize[t] = stat.NewHistogram(stat.Bytes)
	}
	return s
}

// count counts one query and its reply of size bytes.
func (s *Stats) count(x *exchange, size int, took time.Duration) {
	family := 0
	if x.client.Addr().Is6() && !x.client.Addr().Is4In6() {
		family = 1
	}
	s.requests[x.via][family][typeIndex(x.q.Type)].Add(1)
	s.responses[min(int(x.r.Rcode()), rcodeCount-1)][x.source].Add(1)
	if x.q.DO {
		s.do.Add(1)
	}
	s.duration.Observe(took.Seconds())
	s.reqSize[x.via].Observe(float64(len(x.q.Packet)))
	s.respSize[x.via].Observe(float64(size))
}

// Duration is the time from a query's arrival to its reply, in seconds.
func (s *Stats) Duration() stat.Snapshot { return s.duration.Read() }

// DO is the number of queries with the DO bit.
func (s *Stats) DO() uint64 { return s.do.Load() }

// EachSize calls f for each transport that had queries, with the sizes of
// requests and responses in bytes.
func (s *Stats) EachSize(f func(proto string, req, resp stat.Snapshot)) {
	for t := range transport(transports) {
		if req := s.reqSize[t].Read(); req.Count > 0 {
			f(t.String(), req, s.respSize[t].Read())
		}
	}
}

// EachRequest calls f for each combination that was counted. Family is "1" for
// IPv4 and "2" for IPv6, as in CoreDNS's label.
func (s *Stats) EachRequest(f func(proto, family, qtype string, n uint64)) {
	for t := range transport(transports) {
		for fam := range 2 {
			for i := range s.requests[t][fam] {
				if n := s.requests[t][fam][i].Load(); n > 0 {
					f(t.String(), strconv.Itoa(fam+1), countedTypes[i].name, n)
				}
			}
		}
	}
}

// EachResponse calls f for each combination that was counted. plugin is the step
// that answered.
func (s *Stats) EachResponse(f func(rcode, plugin string, n uint64)) {
	for rc := range s.responses {
		for src := range s.responses[rc] {
			if n := s.responses[rc][src].Load(); n > 0 {
				f(wire.Rcode(rc).String(), sourceNames[src], n)
			}
		}
	}
}

// rcodeCount is one more than the last rcode with a name (BADCOOKIE, 23).
const rcodeCount = 24

// countedTypes are the values of the type label; all others are "other", so that
// a client can't make labels.
var countedTypes = [...]struct {
	qtype uint16
	name  string
}{
	{0, "other"}, {wire.TypeA, "A"}, {wire.TypeAAAA, "AAAA"}, {wire.TypeSRV, "SRV"}, {wire.TypePTR, "PTR"},
	{wire.TypeCNAME, "CNAME"}, {wire.TypeTXT, "TXT"}, {wire.TypeMX, "MX"}, {wire.TypeNS, "NS"}, {wire.TypeSOA, "SOA"},
	{dns.TypeHTTPS, "HTTPS"}, {dns.TypeSVCB, "SVCB"}, {wire.TypeANY, "ANY"}, {wire.TypeDS, "DS"},
	{dns.TypeDNSKEY, "DNSKEY"}, {dns.TypeRRSIG, "RRSIG"}, {dns.TypeNSEC, "NSEC"}, {dns.TypeNSEC3, "NSEC3"},
	{dns.TypeNAPTR, "NAPTR"}, {dns.TypeTLSA, "TLSA"}, {dns.TypeCAA, "CAA"}, {wire.TypeAXFR, "AXFR"}, {wire.TypeIXFR, "IXFR"},
}

const typeCount = len(countedTypes)

// typeIndex is where qtype stands in countedTypes. The list is in order of how
// often a node sees the types, so the walk is short.
func typeIndex(qtype uint16) int {
	for i := 1; i < typeCount; i++ {
		if countedTypes[i].qtype == qtype {
			return i
		}
	}
	return 0
}
