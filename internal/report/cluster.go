package report

// Cluster begins what `kubectl nodens` prints. It is put together from the replies of the agents.
type Cluster struct {
	SchemaVersion int `json:"schemaVersion"`
	// Nodes is the number of nodes whose agent answered. Each counts once.
	Nodes int `json:"nodes"`
	// Unanswered are the agents without a reply that could be used, by node.
	Unanswered []Unanswered `json:"unanswered"`
}

// Unanswered is an agent without a reply that could be used.
type Unanswered struct {
	Node   string `json:"node"` // "" if the pod has none yet
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
}

// ClusterStatus is what `kubectl nodens status` prints.
type ClusterStatus struct {
	Cluster
	// Healthy: all agents have answered and are healthy.
	Healthy bool `json:"healthy"`
	// Agents are the replies to GET /status, by node.
	Agents []Status `json:"agents"`
}

// ClusterClients is what `kubectl nodens top` prints by pod, workload or namespace.
type ClusterClients struct {
	Cluster
	By     string `json:"by"`
	Window string `json:"window"`
	// QueriesPerSecond is of all nodes.
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	// Clients are the rows, those with the most queries first, More how many others there are. Total
	// is the sum over all of them.
	Clients []ClusterClient `json:"clients"`
	More    int             `json:"more"`
	Total   ClientCounts    `json:"total"`
}

// ClusterClient is a row of [ClusterClients]. Share is its share of all queries of the cluster.
// P50Seconds and P99Seconds are the highest ones of a node.
type ClusterClient struct {
	// Node is where a pod is; "" if the row is the sum over several nodes. Nodes is their number.
	Node              string  `json:"node"`
	Nodes             int     `json:"nodes"`
	UpstreamPerSecond float64 `json:"upstreamPerSecond"`
	Client
}

// ClusterNames is what `kubectl nodens top --by name` prints.
type ClusterNames struct {
	Cluster
	Topic   string `json:"topic"`
	Window  string `json:"window"`
	Queries uint64 `json:"queries"`
	// Floor is the sum over the nodes. A name may have so many queries more than its row says, on
	// nodes where it has none.
	Floor uint64 `json:"floor"`
	// KernelSample is 64 if a node counts one in 64 answers from the kernel; else 0.
	KernelSample int    `json:"kernelSample"`
	Names        []Name `json:"names"`
	More         int    `json:"more"`
}

// ClusterUpstreams is what `kubectl nodens top --by upstream` prints.
type ClusterUpstreams struct {
	Cluster
	// PerSecond are exchanges with a reply, of all nodes.
	PerSecond float64 `json:"perSecond"`
	// Upstreams are the servers, those with the most exchanges first, More how many others there are.
	Upstreams []ClusterUpstream `json:"upstreams"`
	More      int               `json:"more"`
}

// ClusterUpstream is a server that agents forward to.
type ClusterUpstream struct {
	To string `json:"to"`
	// Nodes is the number of nodes that forward to it, Down and Suspect for how many of them it is down or suspect.
	Nodes   int `json:"nodes"`
	Down    int `json:"down"`
	Suspect int `json:"suspect"`
	// PerSecond is the sum over the nodes, Share its share of all exchanges. ServfailShare is of the exchanges of all
	// nodes. UnansweredShare, RTTSeconds, P50Seconds and P99Seconds are the highest ones of a node.
	PerSecond       float64 `json:"perSecond"`
	Share           float64 `json:"share"`
	ServfailShare   float64 `json:"servfailShare"`
	UnansweredShare float64 `json:"unansweredShare"`
	RTTSeconds      float64 `json:"rttSeconds"`
	P50Seconds      float64 `json:"p50Seconds"`
	P99Seconds      float64 `json:"p99Seconds"`
	// Budget is the one with the highest use of a node; null if it has none on any node. Its counters are sums over the
	// nodes.
	Budget *Budget `json:"budget"`
}

// ClusterPolicies is what `kubectl nodens policy` prints.
type ClusterPolicies struct {
	Cluster
	// Pods are by namespace, name and address, More how many others there are.
	Pods []ClusterPolicyPod `json:"pods"`
	More int                `json:"more"`
}

// ClusterPolicyPod is a row of [ClusterPolicies].
type ClusterPolicyPod struct {
	Node string `json:"node"`
	PolicyPod
}

// ClusterDraftPolicy is what `kubectl nodens policy --draft` prints. Counts are sums over the nodes; of nodes with such pods, Floor is the
// highest and WindowSeconds the shortest.
type ClusterDraftPolicy struct {
	Cluster
	Draft
}
