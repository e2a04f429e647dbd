package report

// Explanation is the reply to GET /explain: what the agent would do with a query, and why.
type Explanation struct {
	Header
	Listener ExplainedListener `json:"listener"`
	Client   ExplainedClient   `json:"client"`
	// Ndots is the option of the client's resolver: a name with fewer dots is asked with the search
	// domains first. Search are the domains; empty if the name was taken as it is.
	Ndots  int      `json:"ndots"`
	Search []string `json:"search"`
	// Questions are the queries in the order in which the client's resolver sends them.
	Questions []ExplainedQuestion `json:"questions"`
}

// ExplainedListener is where the query arrives.
type ExplainedListener struct {
	Address   string `json:"address"`
	Transport string `json:"transport"` // dns, tls or https
	Protocol  string `json:"protocol"`  // udp or tcp
}

// ExplainedClient is who asks. Namespace, Pod and Workload are empty unless it is a pod of the node.
type ExplainedClient struct {
	Address      string `json:"address"`
	Namespace    string `json:"namespace"`
	Pod          string `json:"pod"`
	WorkloadKind string `json:"workloadKind"`
	Workload     string `json:"workload"`
	// Limited says how many queries and connections of the client were limited in the last LimitedSeconds, by reason as in
	// [LimitedClient]. It is empty, and LimitedSeconds 0, if none were.
	Limited        map[string]uint64 `json:"limited"`
	LimitedSeconds float64           `json:"limitedSeconds"`
	// Kernel is null without the kernel path, and if the client has not asked over the interface of a pod for
	// a minute.
	Kernel *KernelClient `json:"kernel"`
}

// ExplainedQuestion is what the agent would do with one query.
type ExplainedQuestion struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Conditional: it is only sent if the reply before, which is not known, has no answer.
	Conditional bool `json:"conditional"`
	// Zone takes the query, null if none does.
	Zone  *ExplainedZone  `json:"zone"`
	Steps []ExplainedStep `json:"steps"`
	// MoreSteps is the number of further steps.
	MoreSteps int `json:"moreSteps"`
	// Source is the step that makes the reply, as in the label plugin of the metrics; "" is the server
	// itself. Alternatives are other steps that may make it, depending on an answer that is not known.
	Source       string   `json:"source"`
	Alternatives []string `json:"alternatives"`
	// Waits is what the query waits for: upstream, view or "". If it waits the reply is not known.
	Waits string `json:"waits"`
	ExplainedReply
	Forward *ExplainedForward `json:"forward"` // null unless an upstream would be asked
	// Cached is what the zone's cache has for the name, of any type.
	Cached []CacheEntry `json:"cached"`
	// Kernel is null without the kernel path.
	Kernel *ExplainedKernel `json:"kernel"`
	// Asked is what the client then got; null unless the query was really asked.
	Asked *AskedQuestion `json:"asked"`
}

// ExplainedReply is a reply.
type ExplainedReply struct {
	// Rcode is "" if the reply is not known. NoReply: an ACL drops the query.
	Rcode   string `json:"rcode"`
	NoReply bool   `json:"noReply"`
	// TTLSeconds is the least TTL of the reply's records, null without records.
	TTLSeconds *uint32 `json:"ttlSeconds"`
	// Answers are the records of the answer section, in the format of zone files, MoreAnswers how many
	// others there are.
	Answers     []string `json:"answers"`
	MoreAnswers int      `json:"moreAnswers"`
	// Error is why the reply is an error; "" for none.
	Error string `json:"error"`
}

// AskedQuestion is what became of a query.
type AskedQuestion struct {
	// Source is as in [ExplainedQuestion].
	Source string `json:"source"`
	// Seconds is the time from the query to the reply.
	Seconds float64 `json:"seconds"`
	ExplainedReply
}

// ExplainedZone is a zone of a server block.
type ExplainedZone struct {
	Name string `json:"name"`
	Line int    `json:"line"` // of the server block in the Corefile
	View string `json:"view"` // "" without a view
}

// ExplainedStep is what a step decided.
type ExplainedStep struct {
	// Depth is 0 for the client's question, and more for questions that are asked on its behalf.
	Depth int    `json:"depth"`
	Name  string `json:"name"`
	Type  string `json:"type"`
	// Step is a value of the label plugin, or zone, loop, rewrite or alias. Outcome is takes, passes,
	// answers or waits.
	Step    string `json:"step"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	// Cached is the entry for the question, null for none.
	Cached *CacheEntry `json:"cached"`
}

// ExplainedForward is the forward directive that would be asked.
type ExplainedForward struct {
	From   string `json:"from"`
	Policy string `json:"policy"`
	// Stopped: nothing is forwarded, because the zone's queries come back from its upstreams.
	Stopped bool `json:"stopped"`
	// Upstreams are the servers in the order in which they would be tried.
	Upstreams []ExplainedUpstream `json:"upstreams"`
}

// ExplainedUpstream is a server of a forward directive. RTTSeconds is 0 without samples.
type ExplainedUpstream struct {
	To         string  `json:"to"`
	Down       bool    `json:"down"`
	Suspect    bool    `json:"suspect"`
	RTTSeconds float64 `json:"rttSeconds"`
}

// CacheEntry is an entry of a cache.
type CacheEntry struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Class string `json:"class"`
	// DNSSEC and CheckingDisabled are the bits DO and CD of the queries that it answers.
	DNSSEC           bool   `json:"dnssec"`
	CheckingDisabled bool   `json:"checkingDisabled"`
	Rcode            string `json:"rcode"`
	// Kind is success or denial. Answers is the number of records in the answer section.
	Kind    string `json:"kind"`
	Answers int    `json:"answers"`
	// Subtree: it denies all names below, too.
	Subtree bool `json:"subtree"`
	// AgeSeconds is the time since the answer came, null if a refresh has failed since. TTLSeconds is what
	// is left, 0 after the expiry. StaleSeconds is for how long it may still be served expired.
	AgeSeconds   *float64 `json:"ageSeconds"`
	TTLSeconds   float64  `json:"ttlSeconds"`
	StaleSeconds float64  `json:"staleSeconds"`
	Bytes        int      `json:"bytes"`
}

// ExplainedKernel is what the programs in the kernel have for a question.
type ExplainedKernel struct {
	// Excluded is why the kernel may not have a copy of the answer, in words that may change; "" if nothing is
	// known to prevent one.
	Excluded string `json:"excluded"`
	// Copies are the copies at the listener, one for each form of query.
	Copies []KernelCopy `json:"copies"`
}

// KernelCopy is a copy of an answer, which the programs in the kernel give to queries of one form.
type KernelCopy struct {
	Listener string `json:"listener"`
	Type     string `json:"type"`
	// Flags are what the queries have, of RD, AD, CD, EDNS and DO.
	Flags []string `json:"flags"`
	Rcode string   `json:"rcode"`
	// OneNamespace says that only clients in one namespace get it.
	OneNamespace bool `json:"oneNamespace"`
	// State is valid, expired or outdated.
	State string `json:"state"`
	// TTLSeconds is the time until the copy expires; null if only a change of the cluster ends it. IdleSeconds is
	// the time since it last answered a query, null if it never did.
	TTLSeconds  *float64 `json:"ttlSeconds"`
	IdleSeconds *float64 `json:"idleSeconds"`
}

// KernelClient is what the programs in the kernel know of a client.
type KernelClient struct {
	// Interface is where its last query came in; "" if the interface is gone.
	Interface string `json:"interface"`
	// Answering: queries are answered on the interface; otherwise they are only observed.
	Answering bool `json:"answering"`
	// Result is what comes of a query with a valid copy, as in the metric nodens_kernel_path_queries_total:
	// answered, client_recheck, client_moved, unknown_client, heartbeat_expired, client_limit or client_limit_passed.
	Result string `json:"result"`
}
