package worst

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// Case is one way to make an answer expensive.
type Case struct {
	Name string
	// Who makes it: a [Tenant], an upstream, a client or the operator.
	Who string
	// What is made, as a sentence.
	What string
	// Queries are the packets that are sent in turn; their IDs are of no account.
	Queries [][]byte
	// Rate is how many of them are sent a second.
	Rate int
	// Sources is from how many addresses they come, in turn; 0 is one address.
	Sources int
	// Streams is over how many TCP connections the queries are sent, with sixteen in flight on each, as fast as replies are
	// read; 0: they are sent over UDP.
	Streams int
	// Connections is how many idle TCP connections an attacker keeps open to the DNS
	// port and to the metrics port each, from one address. It stands in place of Queries.
	Connections int
	// Pinned is the unit test that counts what an answer takes, empty where that is in
	// proportion to a list of the operator's.
	Pinned string
}

// Attacker is the address that packets come from in cases with one source.
var Attacker = netip.AddrFrom4([4]byte{127, 0, 0, 9})

// From returns the addresses that the packets of c come from, on the loopback interface.
func (c Case) From() []netip.Addr {
	if c.Sources == 0 {
		return []netip.Addr{Attacker}
	}
	list := make([]netip.Addr, c.Sources)
	for i := range list {
		list[i] = netip.AddrFrom4([4]byte{127, 66, byte(i >> 8), byte(i)})
	}
	return list
}

// The sizes.
const (
	owners       = 2000  // headless Services that select one pod
	ports        = 5000  // ports of one EndpointSlice; Kubernetes allows 20,000
	fewPorts     = 20    // ports of a Service of an ordinary size
	endpoints    = 5000  // endpoints of one Service, in slices of perSlice
	perSlice     = 1000  // the most that Kubernetes allows in one EndpointSlice
	slices       = 1000  // EndpointSlices of one Service, of one endpoint each
	chain        = 8     // ExternalNames in a row, the most that the agent follows
	externalIPs  = 1000  // addresses of one Service outside of the cluster
	longList     = 20000 // ports, and addresses outside of the cluster, of one Service, more than the agent takes
	crowded      = 800   // endpoints of a slice that have perEndpoint addresses each
	perEndpoint  = 100   // the most that Kubernetes allows an endpoint
	networks     = 10000 // of one acl directive
	rules        = 1000  // of rewrite directives
	addresses    = 1000  // of one name in a hosts table
	domains      = 32    // of one search path, the most that Kubernetes allows
	connections  = 1000  // that one client keeps open
	silentRate   = 1200  // queries a second for names whose servers are silent
	streams      = 128   // TCP connections of one client
	busyStreams  = 1024  // TCP connections, the most that an address of the agent has
	busySources  = 8     // addresses that have them
	sources      = 600   // addresses of one attacker, more than the agent counts one by one
	commonRate   = 60    // queries a second of the other cases: 3 KB/s
	heavySRVRate = 20    // queries a second for SRV records: 1 KB/s
)

// Tenant is who makes objects in the cluster.
const Tenant = "a tenant"

// Zones of the cases outside of the cluster.
const (
	external = "ext.example."
	guarded  = "acl.example."
	changed  = "rewrite.example."
	listed   = "hosts.example."
	searched = "search.example."
	// Bombs is the zone for which the upstream sends replies full of compression pointers, Large the one for
	// which it sends as many addresses as fit, and Silence the one for which it sends nothing.
	Bombs   = "bomb.example."
	Large   = "large.example."
	Silence = "silent.example."
)

// Victim is the query of a client that has no part in any of it: a Service's address.
func Victim() []byte { return pack("victim.default.svc.cluster.local.", dns.TypeA, 0) }

// Cases are all of them.
func Cases() []Case {
	return []Case{
		{Name: "PTR of a shared address", Pinned: "TestWorstAnswersAreBounded", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("%d headless Services select one pod.", owners), Queries: one("3.2.1.10.in-addr.arpa.", dns.TypePTR)},
		{Name: "SRV, many ports", Pinned: "TestWorstAnswersAreBounded", Who: Tenant, Rate: heavySRVRate,
			What: fmt.Sprintf("A headless Service has %d ports and %d endpoints.", ports, fewPorts), Queries: one("ports.tenant.svc.cluster.local.", dns.TypeSRV)},
		{Name: "SRV, many endpoints", Pinned: "TestWorstAnswersAreBounded", Who: Tenant, Rate: heavySRVRate,
			What: fmt.Sprintf("A headless Service has %d ports and %d endpoints.", fewPorts, endpoints), Queries: one("members.tenant.svc.cluster.local.", dns.TypeSRV)},
		{Name: "A, many endpoints", Pinned: "TestWorstAnswersAreBounded", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("The addresses of that Service's %d endpoints.", endpoints), Queries: one("members.tenant.svc.cluster.local.", dns.TypeA)},
		{Name: "A, many slices", Pinned: "TestWorstAnswersAreBounded", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("A headless Service has %d EndpointSlices.", slices), Queries: one("scattered.tenant.svc.cluster.local.", dns.TypeA)},
		{Name: "aliases", Pinned: "TestOneBudget", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("%d Services of type ExternalName, each of which leads to the next.", chain), Queries: one("alias-00.tenant.svc.cluster.local.", dns.TypeA)},
		{Name: "external addresses", Pinned: "TestExternalAnswersAreBounded", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("A Service has %d externalIPs, in a block with `k8s_external`.", externalIPs), Queries: one("outside.tenant."+external, dns.TypeA)},
		{Name: "long lists of a Service", Pinned: "TestLongListsAreCheap", Who: Tenant, Rate: heavySRVRate,
			What: fmt.Sprintf("A Service has %d ports and %[1]d externalIPs, in a block with `k8s_external`.", longList), Queries: one("lists.tenant."+external, dns.TypeA)},
		{Name: "many addresses of an endpoint", Pinned: "TestAddressesOfEndpoints", Who: Tenant, Rate: commonRate,
			What: fmt.Sprintf("The EndpointSlice of a headless Service has %d endpoints with %d addresses each.", crowded, perEndpoint), Queries: one("crowded.tenant.svc.cluster.local.", dns.TypeA)},
		{Name: "search path", Pinned: "TestOneBudget", Who: "a client", Rate: commonRate,
			What: fmt.Sprintf("`autopath` with %d domains, none of which has the name.", domains), Queries: one(absent+domain(0), dns.TypeA)},
		{Name: "access list", Pinned: "TestACLChainCost", Who: "the operator", Rate: commonRate,
			What: fmt.Sprintf("`acl` with %d networks.", networks), Queries: one("www."+guarded, dns.TypeA)},
		{Name: "rewrite rules", Who: "the operator", Rate: commonRate,
			What: fmt.Sprintf("%d `rewrite` rules with regular expressions, none of which fits.", rules), Queries: one("www."+changed, dns.TypeA)},
		{Name: "hosts table", Who: "the operator", Rate: commonRate,
			What: fmt.Sprintf("A name with %d addresses in `hosts`.", addresses), Queries: one("www."+listed, dns.TypeA)},
		{Name: "compression pointers", Pinned: "TestWorst", Who: "an upstream", Rate: commonRate,
			What: "Replies of 64 KB whose names are chains of pointers, a new name each time.", Queries: many("b%04d."+Bombs, 2000)},
		{Name: "large replies", Who: "an upstream", Rate: commonRate,
			What: "Honest replies of 64 KB to compare those with: 4,000 addresses, a new name each time.", Queries: many("l%04d."+Large, 2000)},
		{Name: "silent servers", Pinned: "TestClientShare", Who: "a client and an upstream", Rate: silentRate,
			What: "New names for which no server answers.", Queries: many("s%04d."+Silence, 8000)},
		{Name: "silent servers, many addresses", Pinned: "TestLimiterNeverStarves", Who: "a pod with NET_RAW and an upstream", Rate: silentRate, Sources: sources,
			What: fmt.Sprintf("The same from %d addresses in turn, so that they hold all places to wait.", sources), Queries: many("m%04d."+Silence, 8000)},
		{Name: "many addresses", Pinned: "TestManyAddresses", Who: "a pod with NET_RAW", Rate: commonRate, Sources: sources,
			What: fmt.Sprintf("Queries for one name from %d addresses in turn, which take the rows of the tables of clients.", sources), Queries: one("www."+listed, dns.TypeA)},
		{Name: "SRV over TCP", Pinned: "TestLargeInTurn", Who: Tenant, Streams: streams,
			What: fmt.Sprintf("%d connections of one client, with 16 queries each for the SRV records of the Service with %d endpoints.", streams, endpoints), Queries: one("members.tenant.svc.cluster.local.", dns.TypeSRV)},
		{Name: "busy connections", Pinned: "TestBusyListener", Who: "a client and an upstream", Streams: busyStreams, Sources: busySources,
			What: fmt.Sprintf("%d TCP connections of %d addresses, with queries that no server answers.", busyStreams, busySources), Queries: many("t%04d."+Silence, 8000)},
		{Name: "idle connections", Pinned: "TestHTTPClientLimit", Who: "a client", Connections: connections,
			What: fmt.Sprintf("%d connections each to the DNS port and to the metrics port, from one address.", connections)},
	}
}

// one is a single query, with room for a large answer.
func one(name string, qtype uint16) [][]byte { return [][]byte{pack(name, qtype, dns.MaxMsgSize-1)} }

// many are queries for n names.
func many(pattern string, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		list[i] = pack(fmt.Sprintf(pattern, i), dns.TypeA, 0)
	}
	return list
}

// pack makes a query with an OPT record that offers size bytes; 0 is no OPT record. The
// names are constants, so it cannot fail.
func pack(name string, qtype, size uint16) []byte {
	m := new(dns.Msg).SetQuestion(name, qtype)
	if size > 0 {
		m.SetEdns0(size, false)
	}
	packed, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

// domain is the i-th domain of the search path.
func domain(i int) string { return fmt.Sprintf("d%02d.%s", i, searched) }

// Corefile is an agent's with all cases: @LISTEN@, @PORT@, @METRICS@ and @TO@ stand for
// its address, its ports and the address of [Upstream], @FILES@ for the folder that
// [Write] has filled.
func Corefile() string {
	return strings.NewReplacer("@EXTERNAL@", external, "@GUARDED@", guarded, "@CHANGED@", changed,
		"@LISTED@", listed, "@SEARCHED@", searched).Replace(`.:@PORT@ {
    bind @LISTEN@
    kubernetes cluster.local in-addr.arpa {
        manifests @FILES@/cluster.yaml
    }
    k8s_external @EXTERNAL@
    cache 3600
    forward . @TO@
    prometheus @LISTEN@:@METRICS@
}
@GUARDED@:@PORT@ {
    bind @LISTEN@
    acl {
        import @FILES@/acl
    }
    hosts {
        192.0.2.1 www.@GUARDED@
    }
}
@CHANGED@:@PORT@ {
    bind @LISTEN@
    import @FILES@/rewrite
    hosts {
        192.0.2.1 www.@CHANGED@
    }
}
@LISTED@:@PORT@ {
    bind @LISTEN@
    hosts @FILES@/hosts
}
@SEARCHED@:@PORT@ {
    bind @LISTEN@
    autopath @SEARCHED@ @FILES@/resolv.conf
    cache 3600
    forward . @TO@
}
`)
}
