package report

// Policies is the reply to GET /policies: which DNSPolicies bind the pods of the node.
type Policies struct {
	Header
	// Unknown is what becomes of clients as long as the agent does not know which policies bind them: open or closed. It is off
	// without --dns-policies.
	Unknown string `json:"unknown"`
	// Known says that the agent has received all policies and pods.
	Known bool `json:"known"`
	// Pods are the addresses that a policy binds, by namespace and name, More how many others there are.
	Pods []PolicyPod `json:"pods"`
	More int         `json:"more"`
}

// PolicyPod is an address of a pod with the policies that bind it.
type PolicyPod struct {
	Address string `json:"address"`
	// Namespace and Pod are empty if it is not certain which pod has the address.
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	Policies  []BoundPolicy `json:"policies"`
}

// BoundPolicy is a DNSPolicy, in the namespace of the pod.
type BoundPolicy struct {
	Name string `json:"name"`
	Mode string `json:"mode"` // Enforce or Audit
	// Default is what happens to names that neither list has: Allow or Deny. Names is the number of names and Services in the
	// lists.
	Default string `json:"default"`
	Names   int    `json:"names"`
	// Denied are the queries that it denied on this node, for all of its pods; in audit mode, those that it would have denied.
	Denied uint64 `json:"denied"`
}
