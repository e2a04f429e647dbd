package report

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
