package report

// Clients is the reply to GET /clients: who asks how much.
type Clients struct {
	Header
	// By says what the rows are: pod, workload or namespace. Window is the one that was asked for:
	// 10s, 1m or 1h. WindowSeconds is the time that the counts are of: half of it to all of it.
	By            string  `json:"by"`
	Window        string  `json:"window"`
	WindowSeconds float64 `json:"windowSeconds"`
	// SinceSeconds is how long the agent has counted.
	SinceSeconds float64 `json:"sinceSeconds"`
	// Addresses is the number of addresses with counters of their own, AddressLimit the most that
	// there can be. Refused estimates how many others were counted as (other).
	Addresses    int    `json:"addresses"`
	AddressLimit int    `json:"addressLimit"`
	Refused      uint64 `json:"refused"`
	// Clients are the rows with the most queries in the window first, More how many others there
	// are. Total is the sum over all of them.
	Clients []Client     `json:"clients"`
	More    int          `json:"more"`
	Total   ClientCounts `json:"total"`
}

// Client is a row of [Clients].
type Client struct {
	// Kind is pod, host, unknown or other. Namespace, Workload and Pod are empty if the row is not
	// about one.
	Kind         string   `json:"kind"`
	Namespace    string   `json:"namespace"`
	WorkloadKind string   `json:"workloadKind"`
	Workload     string   `json:"workload"`
	Pod          string   `json:"pod"`
	Addresses    []string `json:"addresses"`
	// Ndots is the highest option ndots of the resolvers of the row's pods; null if the row has no pods with an
	// address, or is about a namespace.
	Ndots *int `json:"ndots"`
	// IPv4Only says that the row has pods with an address, and none of them has an IPv6 address. It is false in rows about
	// namespaces.
	IPv4Only bool `json:"ipv4Only"`
	// QueriesPerSecond is of the window, Share the row's share of all queries in it.
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	Share            float64 `json:"share"`
	// P50Seconds and P99Seconds are upper bounds of the latencies of the last 30 to 60 seconds,
	// exact to a factor of two, without answers from the kernel; 0 without any.
	P50Seconds float64      `json:"p50Seconds"`
	P99Seconds float64      `json:"p99Seconds"`
	Window     ClientCounts `json:"window"` // counts in the window
	Total      ClientCounts `json:"total"`  // since the client's first query
	// Unfollowed are the truncated replies in the window to pods and addresses that have never asked over TCP,
	// UnfollowedCapped those of them that would have been complete without the limit of the server block.
	Unfollowed       uint64 `json:"unfollowed"`
	UnfollowedCapped uint64 `json:"unfollowedCapped"`
	// TopName is the name that the client asks for most; null if none is known.
	TopName *TopName `json:"topName"`
}

// TopName is the name that a client asks for most. Share is the least share that it has in the client's
// queries in the window; of answers from the kernel it is an estimate.
type TopName struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"`
}

// ClientCounts are numbers of queries. NoError, NXDomain, Servfail and Other are the results, of which
// each query has one. Each query is one of Hits, Upstream and Shed.
type ClientCounts struct {
	Queries  uint64 `json:"queries"`
	NoError  uint64 `json:"noerror"`
	NXDomain uint64 `json:"nxdomain"`
	Servfail uint64 `json:"servfail"`
	Other    uint64 `json:"other"`
	Hits     uint64 `json:"hits"`   // answered without an upstream
	Kernel   uint64 `json:"kernel"` // those of them that were answered in the kernel
	Upstream uint64 `json:"upstream"`
	Shed     uint64 `json:"shed"`  // refused, because too many waited
	Waste    uint64 `json:"waste"` // NXDOMAIN for a name that only a search path makes
	Slow     uint64 `json:"slow"`
	// TCP came over a connection; Truncated got a reply over UDP with TC set.
	TCP       uint64 `json:"tcp"`
	Truncated uint64 `json:"truncated"`
	// AAAA are for IPv6 addresses, AAAAUpstream those of them for which an upstream was asked; without answers in the kernel.
	AAAA         uint64 `json:"aaaa"`
	AAAAUpstream uint64 `json:"aaaaUpstream"`
	Limited      uint64 `json:"limited"` // shed, refused or dropped because of a limit; not all are in Queries
}

// Label returns what the row is about, of a report by pod, workload or namespace: NAMESPACE/NAME, an address,
// or (host), (unknown) or (other).
func (c *Client) Label(by string) string {
	switch {
	case c.Kind == "unknown" && len(c.Addresses) > 0:
		return c.Addresses[0]
	case c.Kind != "pod":
		return "(" + c.Kind + ")"
	case by == "namespace":
		return c.Namespace
	case by == "workload":
		return c.Namespace + "/" + c.Workload
	}
	return c.Namespace + "/" + c.Pod
}
