package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"
)

// workload is a set of questions that are asked again and again.
type workload struct {
	name string
	// what says what the servers do for it.
	what string
	// pattern makes a name of a number.
	pattern string
	qtype   uint16
	rcode   int
	// cluster says that the names are those of Services at the API server.
	cluster bool
}

// workloads are the workloads, in the order of the report.
var workloads = []workload{
	{
		name: "cached A", pattern: "name-%04d.bench.test.", qtype: dns.TypeA, rcode: dns.RcodeSuccess,
		what: "Names of the upstream's, in the cache of every server: one address each.",
	},
	{
		name: "cached NXDOMAIN", pattern: "none-%04d.nx.test.", qtype: dns.TypeA, rcode: dns.RcodeNameError,
		what: "Names that do not exist at the upstream; the answer, with its SOA, is in the cache.",
	},
	{
		name: "Service A", pattern: "web-%04d." + namespace + ".svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true,
		what: "Services of a real API server that both watch. nodens answers from its view of them; " +
			"CoreDNS answers from its cache, because cache stands before kubernetes in its chain.",
	},
}

// nameCount is the number of names of a workload: what a busy node has in use,
// and a tenth of what the caches hold by default.
const nameCount = 1000

// question is the name with the number i.
func (w workload) question(i int) string { return fmt.Sprintf(w.pattern, i) }

// write writes all questions as a data file of dnsperf's and returns its path.
func (w workload) write(dir string) (string, error) {
	var text strings.Builder
	for i := range nameCount {
		fmt.Fprintf(&text, "%s %s\n", w.question(i), dns.TypeToString[w.qtype])
	}
	path := filepath.Join(dir, strings.ReplaceAll(w.name, " ", "-")+".txt")
	return path, os.WriteFile(path, []byte(text.String()), 0o644)
}
