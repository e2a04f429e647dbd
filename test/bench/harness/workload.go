package harness

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// QuerySet are names that are asked for again and again.
type QuerySet struct {
	Name string
	// What says what the servers do for them.
	What string
	// Pattern makes a name of a number below [QuerySet.Count].
	Pattern string
	// Size is the number of names of a pattern; 0 is NameCount.
	Size int
	// Names are the names themselves, in place of a pattern.
	Names []string
	// Edns says that the questions have an OPT record.
	Edns  bool
	Qtype uint16
	Rcode int
	// Cluster says that the answer is in the API server's objects.
	Cluster bool
	// SaturationOnly sets are asked at no fixed rate, where most of the cost is the kernel's and the
	// same for all sets.
	SaturationOnly bool
}

// QuerySets are the questions, in the order of the report.
var QuerySets = []QuerySet{
	{
		Name: "cached A", Pattern: "name-%04d.bench.example.", Qtype: dns.TypeA, Rcode: dns.RcodeSuccess,
		What: "Names of an upstream with one address each, in the cache of every server.",
	},
	{
		Name: "cached NXDOMAIN", Pattern: "gone-%04d." + load.Missing, Qtype: dns.TypeA, Rcode: dns.RcodeNameError, SaturationOnly: true,
		What: "Names that do not exist at the upstream. The answer, with its SOA, is in the cache.",
	},
	{
		Name: "Service A", Pattern: "web-%04d." + Namespace + ".svc.cluster.local.", Qtype: dns.TypeA, Rcode: dns.RcodeSuccess, Cluster: true,
		What: "Services of a real API server, which both servers watch. nodens answers from its view; " +
			"CoreDNS answers from its cache, because its `cache` plugin comes before `kubernetes`.",
	},
	{
		Name: "headless A", Pattern: "set-%04d." + Namespace + ".svc.cluster.local.", Qtype: dns.TypeA, Rcode: dns.RcodeSuccess, Cluster: true, SaturationOnly: true,
		What: fmt.Sprintf("Headless Services with %d endpoints each; the answer contains all of them.", EndpointCount),
	},
	{
		Name: "cluster NXDOMAIN", Pattern: "none-%04d." + Namespace + ".svc.cluster.local.", Qtype: dns.TypeA, Rcode: dns.RcodeNameError, Cluster: true, SaturationOnly: true,
		What: "Services that do not exist. A pod's search list causes many such queries.",
	},
}

// Namespace holds the Services that are asked for.
const Namespace = "bench"

// EndpointCount is the number of endpoints of a headless Service: those of a
// small database or queue.
const EndpointCount = 5

// NameCount is the number of names of a set: what a busy node has in use,
// and a tenth of what the caches hold by default.
const NameCount = 1000

// Question is the name with the number i.
func (q QuerySet) Question(i int) string {
	if q.Names != nil {
		return q.Names[i]
	}
	return fmt.Sprintf(q.Pattern, i)
}

// Count is how many names there are.
func (q QuerySet) Count() int {
	if q.Names != nil {
		return len(q.Names)
	}
	return cmp.Or(q.Size, NameCount)
}

// Last is the last name as a message.
func (q QuerySet) Last() ([]byte, error) {
	m := new(dns.Msg).SetQuestion(q.Question(q.Count()-1), q.Qtype)
	if q.Edns {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	return m.Pack()
}

// write writes all questions as a data file of dnsperf's and returns its path.
func (q QuerySet) write(dir string) (string, error) {
	var text strings.Builder
	for i := range q.Count() {
		fmt.Fprintf(&text, "%s %s\n", q.Question(i), dns.TypeToString[q.Qtype])
	}
	path := filepath.Join(dir, strings.ReplaceAll(q.Name, " ", "-")+".txt")
	return path, os.WriteFile(path, []byte(text.String()), 0o644)
}

// packed returns the first n questions as messages.
func (q QuerySet) packed(n int) ([][]byte, error) {
	var list [][]byte
	for i := range n {
		msg, err := query(q.Question(i), q.Qtype)
		if err != nil {
			return nil, err
		}
		list = append(list, msg)
	}
	return list, nil
}

func query(name string, qtype uint16) ([]byte, error) {
	return new(dns.Msg).SetQuestion(name, qtype).Pack()
}

// LoadShape is how a set is asked.
type LoadShape struct {
	Name string
	// What says what that shows.
	What string
	// Tool does it.
	Tool loadTool
	// Rate is in queries a second.
	Rate int
	// Clients and outstanding are dnsperf's sockets or connections, and its
	// queries under way.
	clients, Outstanding int
}

// loadTool is what asks.
type loadTool int

const (
	SaturateUDP   loadTool = iota // dnsperf over UDP, as fast as it goes
	SaturateTCP                   // dnsperf over TCP connections that stay, as fast as it goes
	FixedRate                     // package load, at a rate
	CacheMisses                   // package load, new names of the late upstream, at a rate or as fast as it goes
	MissFlood                     // package load, at a rate, beside a flood of such names
	FromPod                       // ask/ask.c, in a pod
	MissesFromPod                 // the same with new names
)

// The load. Everything comes from eight sockets: a few pods at once. More change
// nothing for a server with one socket.
const (
	Clients = 8
	// Outstanding is the number of queries under way at saturation. A hundred keep
	// the server's core busy whatever the scheduler does on the other; the default
	// receive buffer holds some 270, so none is dropped.
	Outstanding = 100
	// open is the number of TCP connections that have one query under way each: as
	// many as there are queries under way elsewhere.
	open = Outstanding
	// window is the number of misses under way: with an upstream that takes two
	// milliseconds, twice what a server gets done in them at 60,000 a second, and
	// again less than its receive buffer holds.
	window = 256
	// floodRate is that of the flood, in queries a second: between a third and all
	// of what the servers can do at most, so that it is a burden for all.
	floodRate = 20000
	// hot is how many names are asked for beside the flood. Each is asked for ten
	// times a second and the flood puts two thousand names into the cache
	// meanwhile, so that a cache of ten thousand that keeps what is in use has them.
	hot = 100
)

// Workload is a set asked in a manner.
type Workload struct {
	QuerySet
	LoadShape
	Name string
}

// The manners. The first three go with the sets, the others with the first set.
var (
	LoadShapes = []LoadShape{
		{Name: "at saturation", Tool: SaturateUDP, clients: Clients, Outstanding: Outstanding,
			What: "More queries wait than the server's core can answer."},
		{Name: "1,000 qps", Tool: FixedRate, Rate: 1000, What: "One query per millisecond: a node with a few hundred pods."},
		{Name: "10,000 qps", Tool: FixedRate, Rate: 10000, What: "One query per 100 µs: a busy node."},
	}
	ExtraShapes = []LoadShape{
		{Name: "TCP", Tool: SaturateTCP, clients: Clients, Outstanding: Outstanding,
			What: "Long-lived connections with a dozen queries in flight on each, at saturation."},
		{Name: "TCP, one in flight", Tool: SaturateTCP, clients: open, Outstanding: open,
			What: "A hundred long-lived connections. Each waits for its answer before it sends the next query."},
		{Name: "misses", Tool: CacheMisses,
			What: "Every name is new, and the upstream takes 2 ms; at saturation."},
		{Name: "misses, 2,000 qps", Tool: CacheMisses, Rate: 2000,
			What: "One new name per 500 µs: a busy node whose names are rarely in the cache."},
		{Name: "before the flood", Tool: FixedRate, Rate: 1000,
			What: "A hundred cached names, 1,000 queries a second. The next table is compared with this one."},
		{Name: "in the flood", Tool: MissFlood, Rate: 1000,
			What: "The same, together with 20,000 queries a second for new names of an upstream that takes 2 ms."},
	}
)

// Workloads are all workloads, in the order in which they are measured.
func Workloads() []Workload {
	var list []Workload
	for _, q := range QuerySets {
		for _, m := range LoadShapes {
			if m.Tool == SaturateUDP || !q.SaturationOnly {
				list = append(list, Workload{q, m, q.Name + ", " + m.Name})
			}
		}
	}
	for _, m := range ExtraShapes {
		list = append(list, Workload{QuerySets[0], m, m.Name})
	}
	return list
}

// ManyNames is how many names the busiest nodes have in use within a TTL.
const ManyNames = 100000

// BeforeWorkloads are the workloads that compare the agent with an earlier one: all of
// [Workloads], and cached names that don't fit into the CPU's caches.
func BeforeWorkloads() []Workload {
	many := QuerySet{
		Name: "100,000 cached A", Pattern: "many-%06d.bench.example.", Size: ManyNames, Qtype: dns.TypeA, Rcode: dns.RcodeSuccess,
		What: "A hundred times as many names of the upstream.",
	}
	list := Workloads()
	for _, m := range LoadShapes[:2] {
		list = append(list, Workload{many, m, many.Name + ", " + m.Name})
	}
	return list
}

// Names returns the names of workloads.
func Names(list []Workload) (names []string) {
	for _, w := range list {
		names = append(names, w.Name)
	}
	return names
}

// Asks says whether the server gets the workload.
func (w Workload) Asks(s Server) bool {
	p := Programs[s.Program]
	switch {
	case w.Cluster && !p.cluster, s.SaturationOnly && w.Tool != SaturateUDP:
		return false
	case p.PerSet: // an echo has no connections and no upstream
		return w.Tool == SaturateUDP || (w.Tool == FixedRate && w.Name != "before the flood")
	default:
		return true
	}
}
