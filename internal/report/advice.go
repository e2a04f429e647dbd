package report

// Advice is what `nodens advise` prints: which look-ups are wasted, and what would stop them.
type Advice struct {
	Header
	// WindowSeconds is the time that the counts are of, SinceSeconds how long the agent has counted.
	Window        string  `json:"window"`
	WindowSeconds float64 `json:"windowSeconds"`
	SinceSeconds  float64 `json:"sinceSeconds"`
	AdviceCounts
	// Budgets are those of which LeastBudgetUse or more is used, or for which queries wait, the one with the highest use
	// first.
	Budgets []AdvisedBudget `json:"budgets"`
}

// ClusterAdvice is what `kubectl nodens advise` prints.
type ClusterAdvice struct {
	Cluster
	Window string `json:"window"`
	// WindowSeconds is the shortest time that the counts of a node are of.
	WindowSeconds float64 `json:"windowSeconds"`
	AdviceCounts
	// Budgets are those of all nodes, the ones with the highest use first, MoreBudgets how many others there are.
	Budgets     []NodeBudget `json:"budgets"`
	MoreBudgets int          `json:"moreBudgets"`
}

// NodeBudget is the budget of an upstream on a node.
type NodeBudget struct {
	Node string `json:"node"`
	AdvisedBudget
}

// LeastBudgetUse is the used share of a budget from which there is advice.
const LeastBudgetUse = 0.5

// AdvisedBudget is the budget of an upstream, who uses the upstreams most, and what relieves the budget.
type AdvisedBudget struct {
	To string `json:"to"`
	// LimitPerSecond and Auto are as in [Budget]. UsedShare is the higher one of the last second and of the last
	// minute, Waiting the number of queries that wait now.
	LimitPerSecond float64 `json:"limitPerSecond"`
	Auto           bool    `json:"auto"`
	UsedShare      float64 `json:"usedShare"`
	Waiting        int     `json:"waiting"`
	// Top is the workload that has asked upstreams most in the window; null if none has.
	Top *UpstreamClient `json:"top"`
	// Relief are the changes that relieve the budget of Top's queries.
	Relief []Relief `json:"relief"`
}

// WorkloadID identifies a workload, or the sum of other clients. Kind is as in [Client].
type WorkloadID struct {
	Kind         string `json:"kind"`
	Namespace    string `json:"namespace"`
	WorkloadKind string `json:"workloadKind"`
	Workload     string `json:"workload"`
}

// Label returns NAMESPACE/WORKLOAD, or (host), (unknown) or (other).
func (w *WorkloadID) Label() string {
	if w.Kind != "pod" {
		return "(" + w.Kind + ")"
	}
	return w.Namespace + "/" + w.Workload
}

// UpstreamClient is a client that asks upstreams.
type UpstreamClient struct {
	WorkloadID
	// UpstreamPerSecond is the number of its queries for which an upstream was asked, Share their share of the queries
	// of all clients for which one was.
	UpstreamPerSecond float64 `json:"upstreamPerSecond"`
	Share             float64 `json:"share"`
}

// Relief is a change that makes queries to an upstream unnecessary, or less urgent.
type Relief struct {
	// Kind is ndots, longer TTL, serve_stale or client_limit.
	Kind string `json:"kind"`
	// Text is what to write and where, Reason why; both in words that may change.
	Text   string `json:"text"`
	Reason string `json:"reason"`
}

// The values of [Relief.Kind] that are not those of [Change.Kind].
const (
	ReliefLongerTTL   = "longer TTL"
	ReliefServeStale  = "serve_stale"
	ReliefClientLimit = "client_limit"
)

// TruncatedClient is a client some of whose pods get truncated replies and have never asked over TCP: they do without the
// records that are missing.
type TruncatedClient struct {
	WorkloadID
	// Replies are the truncated replies in the window to these pods, Capped those of them that would have been complete
	// without the limit of the server block.
	Replies uint64 `json:"replies"`
	Capped  uint64 `json:"capped"`
	// Remedies are what to change: the client, or bufsize, or both.
	Remedies []Relief `json:"remedies"`
}

// The values of [Relief.Kind] of truncated replies.
const (
	RemedyClient  = "client"
	RemedyBufsize = "bufsize"
)

// AdviceCounts are the counts of pods, and the changes that follow from them.
type AdviceCounts struct {
	// Queries are the queries of pods in the window, Waste the search waste among them.
	Queries          uint64  `json:"queries"`
	Waste            uint64  `json:"waste"`
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	// UnusableAAAA are the queries for IPv6 addresses of workloads without an IPv6 address, UnusableUpstream those of them for
	// which an upstream was asked. The directive aaaa saves the latter. Answers in the kernel are not included.
	UnusableAAAA     uint64 `json:"unusableAAAA"`
	UnusableUpstream uint64 `json:"unusableUpstream"`
	// Workloads are those with a share of waste of LeastWaste or more, those with the most waste first.
	Workloads []AdvisedWorkload `json:"workloads"`
	// Changes are those for all pods together.
	Changes []Change `json:"changes"`
	// Truncated are the clients that get truncated replies and never ask over TCP, those with the most replies first.
	Truncated []TruncatedClient `json:"truncated"`
	// Bypasses are the clients that ask other DNS servers, those with the most queries first; empty without --bypass=count.
	Bypasses []BypassClient `json:"bypasses"`
}

// BypassClient is a client that asks another DNS server than the agent. Protocol is udp, tcp, tls, quic, https or http3; over
// TCP each connection counts as a query.
type BypassClient struct {
	WorkloadID
	Server   string `json:"server"` // address and port
	Protocol string `json:"protocol"`
	Queries  uint64 `json:"queries"` // in the window
}

// LeastWaste is the share of waste in a workload's queries from which there is advice.
const LeastWaste = 0.05

// AdvisedWorkload is a workload whose queries are partly search waste.
type AdvisedWorkload struct {
	Namespace        string  `json:"namespace"`
	WorkloadKind     string  `json:"workloadKind"`
	Workload         string  `json:"workload"`
	Queries          uint64  `json:"queries"`
	Waste            uint64  `json:"waste"`
	WasteShare       float64 `json:"wasteShare"` // of Queries
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	// Ndots is the highest option ndots of the resolvers of its pods now; null if none has an address.
	Ndots *int `json:"ndots"`
	// NamesOf is workload if Names are names that the workload asks for; namespace if they are the
	// ones of its namespace, whose waste the workload has a part in; "" if none is known.
	NamesOf string       `json:"namesOf"`
	Names   []WastedName `json:"names"`
	Changes []Change     `json:"changes"`
}

// WastedName is a name that an application looks up, without what the search path appends.
type WastedName struct {
	// Name has no final dot. If it is one of the namespace, * is its first label.
	Name string `json:"name"`
	Dots int    `json:"dots"`
	// External: no name on the search path below the cluster domain exists.
	External bool `json:"external"`
	// Lookups is the number of look-ups, Waste the number of their wasted queries.
	Lookups uint64 `json:"lookups"`
	Waste   uint64 `json:"waste"`
}

// Change is a change that stops waste.
type Change struct {
	// Kind is ndots, trailing dot or autopath.
	Kind string `json:"kind"`
	// Ndots is the value with kind ndots, Name the name to ask for with kind trailing dot.
	Ndots int    `json:"ndots"`
	Name  string `json:"name"`
	// Text is what to write.
	Text string `json:"text"`
	// Saved is the number of queries in the window that there would not have been. SavedShare is
	// its share of the workload's queries, or of all pods' queries.
	Saved          uint64  `json:"saved"`
	SavedPerSecond float64 `json:"savedPerSecond"`
	SavedShare     float64 `json:"savedShare"`
}

// The values of [Change.Kind].
const (
	ChangeNdots       = "ndots"
	ChangeTrailingDot = "trailing dot"
	ChangeAutopath    = "autopath"
)
