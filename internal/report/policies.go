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

// MaxDraft bounds a draft of a policy, in bytes: as many names as a policy may have, of 253 bytes each, with dashes and quotes.
const MaxDraft = 3 << 20

// DraftPolicy is the reply to POST /policies/draft: which of the names in memory a draft of a DNSPolicy would deny.
type DraftPolicy struct {
	Header
	Draft
}

// Draft is what a draft of a DNSPolicy would deny.
type Draft struct {
	// WindowSeconds is the time that the names are of: half an hour to an hour, or less after a start. Floor is the most queries
	// of a pod for a name that is not among them. KernelSample is as in [Names].
	WindowSeconds float64 `json:"windowSeconds"`
	Floor         uint64  `json:"floor"`
	KernelSample  int     `json:"kernelSample"`
	// Addresses are those of pods of this node that the draft would bind. Queries are what they have asked for the names in memory, and Denied
	// those that would have been denied, without names that only a search path makes.
	Addresses int    `json:"addresses"`
	Queries   uint64 `json:"queries"`
	Denied    uint64 `json:"denied"`
	// Names are the names that would be denied, those with the most queries first, More how many others there are.
	Names []DraftDenial `json:"names"`
	More  int           `json:"more"`
}

// DraftDenial is a name that a pod has asked for, and that a draft would deny.
type DraftDenial struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Address   string `json:"address"`
	Name      string `json:"name"` // with a final dot
	Queries   uint64 `json:"queries"`
	// Policy is the one that would deny the name: the draft, or another one together with it. DeniedNow says that the policies in force deny it,
	// too.
	Policy    string `json:"policy"`
	DeniedNow bool   `json:"deniedNow"`
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
