package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/loadgen"
)

// querySet are names that are asked for again and again.
type querySet struct {
	name string
	// what says what the servers do for them.
	what string
	// pattern makes a name of a number, of which there are nameCount.
	pattern string
	// names are the names themselves, in place of a pattern.
	names []string
	// edns says that the questions have an OPT record.
	edns  bool
	qtype uint16
	rcode int
	// cluster says that the answer is in the API server's objects.
	cluster bool
}

// querySets are the questions, in the order of the report.
var querySets = []querySet{
	{
		name: "cached A", pattern: "name-%04d.bench.example.", qtype: dns.TypeA, rcode: dns.RcodeSuccess,
		what: "Names of the upstream's, in the cache of every server: one address each.",
	},
	{
		name: "cached NXDOMAIN", pattern: "gone-%04d." + loadgen.Missing, qtype: dns.TypeA, rcode: dns.RcodeNameError,
		what: "Names that do not exist at the upstream; the answer, with its SOA, is in the cache.",
	},
	{
		name: "Service A", pattern: "web-%04d." + namespace + ".svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true,
		what: "Services of a real API server that both watch. nodens answers from its view of them; " +
			"CoreDNS answers from its cache, because cache stands before kubernetes in its chain.",
	},
	{
		name: "headless A", pattern: "set-%04d." + namespace + ".svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true,
		what: fmt.Sprintf("Headless Services with %d endpoints each, every one of which is in the answer.", endpointCount),
	},
	{
		name: "cluster NXDOMAIN", pattern: "none-%04d." + namespace + ".svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeNameError, cluster: true,
		what: "Services that do not exist, as a pod's search list asks for them all day.",
	},
}

// namespace holds the Services that are asked for.
const namespace = "bench"

// endpointCount is the number of endpoints of a headless Service: those of a
// small database or queue.
const endpointCount = 5

// nameCount is the number of names of a set: what a busy node has in use,
// and a tenth of what the caches hold by default.
const nameCount = 1000

// question is the name with the number i.
func (q querySet) question(i int) string {
	if q.names != nil {
		return q.names[i]
	}
	return fmt.Sprintf(q.pattern, i)
}

// count is how many names there are.
func (q querySet) count() int {
	if q.names != nil {
		return len(q.names)
	}
	return nameCount
}

// last is the last name as a message.
func (q querySet) last() ([]byte, error) {
	m := new(dns.Msg).SetQuestion(q.question(q.count()-1), q.qtype)
	if q.edns {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	return m.Pack()
}

// write writes all questions as a data file of dnsperf's and returns its path.
func (q querySet) write(dir string) (string, error) {
	var text strings.Builder
	for i := range q.count() {
		fmt.Fprintf(&text, "%s %s\n", q.question(i), dns.TypeToString[q.qtype])
	}
	path := filepath.Join(dir, strings.ReplaceAll(q.name, " ", "-")+".txt")
	return path, os.WriteFile(path, []byte(text.String()), 0o644)
}

// packed returns the first n questions as messages.
func (q querySet) packed(n int) ([][]byte, error) {
	var list [][]byte
	for i := range n {
		msg, err := query(q.question(i), q.qtype)
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

// loadShape is how a set is asked.
type loadShape struct {
	name string
	// what says what that shows.
	what string
	// tool does it.
	tool loadTool
	// rate is in queries a second.
	rate int
	// clients and outstanding are dnsperf's sockets or connections, and its
	// queries under way.
	clients, outstanding int
}

// loadTool is what asks.
type loadTool int

const (
	saturateUDP loadTool = iota // dnsperf over UDP, as fast as it goes
	saturateTCP                 // dnsperf over TCP connections that stay, as fast as it goes
	fixedRate                   // package pace, at a rate
	cacheMisses                 // package pace, new names of the late upstream, as fast as it goes
	missFlood                   // package pace, at a rate, beside a flood of such names
	fromPod                     // ask/ask.c, in a pod
)

// The load. Everything comes from eight sockets: a few pods at once. More change
// nothing for a server with one socket.
const (
	clients = 8
	// outstanding is the number of queries under way at saturation. A hundred keep
	// the server's core busy whatever the scheduler does on the other; the default
	// receive buffer holds some 270, so none is dropped.
	outstanding = 100
	// open is the number of TCP connections that have one query under way each: as
	// many as there are queries under way elsewhere.
	open = outstanding
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

// workload is a set asked in a manner.
type workload struct {
	querySet
	loadShape
	name string
}

// The manners. The first three go with every set, the others with the first.
var (
	loadShapes = []loadShape{
		{name: "at saturation", tool: saturateUDP, clients: clients, outstanding: outstanding,
			what: "With more queries waiting than the server's core can answer."},
		{name: "1,000 qps", tool: fixedRate, rate: 1000, what: "A query every millisecond: a node with a few hundred pods."},
		{name: "10,000 qps", tool: fixedRate, rate: 10000, what: "A query every 100 µs: a busy node."},
	}
	extraShapes = []loadShape{
		{name: "TCP", tool: saturateTCP, clients: clients, outstanding: outstanding,
			what: "Connections that stay, each with a dozen queries under way, at saturation."},
		{name: "TCP, one under way", tool: saturateTCP, clients: open, outstanding: open,
			what: "A hundred connections that stay; each waits for its answer before it asks again."},
		{name: "misses", tool: cacheMisses,
			what: "Every name is a new one, and the upstream takes 2 ms; at saturation."},
		{name: "before the flood", tool: fixedRate, rate: 1000,
			what: "A hundred cached names, 1,000 queries a second: what the next table is compared with."},
		{name: "in the flood", tool: missFlood, rate: 1000,
			what: "The same, and beside them 20,000 queries a second for new names, of an upstream that takes 2 ms."},
	}
)

// workloads are all workloads, in the order in which they are measured.
func workloads() []workload {
	var list []workload
	for _, q := range querySets {
		for _, m := range loadShapes {
			list = append(list, workload{q, m, q.name + ", " + m.name})
		}
	}
	for _, m := range extraShapes {
		list = append(list, workload{querySets[0], m, m.name})
	}
	return list
}

// asks says whether the server gets the workload.
func (w workload) asks(s server) bool {
	p := programs[s.program]
	switch {
	case w.cluster && !p.cluster, s.saturationOnly && w.tool != saturateUDP:
		return false
	case p.perSet: // an echo has no connections and no upstream
		return w.tool == saturateUDP || (w.tool == fixedRate && w.name != "before the flood")
	default:
		return true
	}
}
