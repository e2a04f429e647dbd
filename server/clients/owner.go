package clients

import (
	"net/netip"
	"time"
)

// Kind says what a client is.
type Kind uint8

const (
	// PodClient is a pod of this node.
	PodClient Kind = iota
	// Host is the node itself, with the pods in its network namespace.
	Host
	// Unknown is an address of no known pod.
	Unknown
	// Other are all addresses for which the table has no room.
	Other
)

// String returns the name that reports and metrics use in place of a namespace; "" for a pod.
func (k Kind) String() string { return [...]string{"", "(host)", "(unknown)", "(other)"}[k] }

// Pod is a pod of this node. The zero value is none.
type Pod struct {
	Namespace, Name, UID string
	// Workload is what controls the pod.
	Workload Workload
}

// Workload is a controller of pods, such as Deployment web, or a pod without one.
type Workload struct{ Kind, Name string }

// owner is whom queries are counted for.
type owner struct {
	kind Kind
	pod  Pod // of a PodClient
	// addrs are the addresses of a pod, also the earlier ones, or the one that is unknown.
	addrs []netip.Addr
	// live is how many addresses it has now. ended is when the last one was taken away,
	// meaningless while there is one.
	live    int
	ended   time.Duration
	total   counters
	marks   [numWindows]marks
	latency latencies
	series  *series                  // nil: not counted yet
	logged  *[numReasons]loggedLimit // nil: it was never limited
}

// endedAddr is an address that a pod has lost.
type endedAddr struct {
	pod Pod
	at  time.Duration
	// claimed says that by the watch the pod still has the address.
	claimed bool
}

const (
	// maxIdentities bounds the identities, of which those that have ended are kept for an hour.
	maxIdentities = 1024
	// keepIdentity is the length of the longest window of names.
	keepIdentity = time.Hour
)

// identity is a client while its address has one owner. Names are counted by the number of an identity, so that
// they stay with the client that asked for them when the address gets another owner. Number 0 is (other).
type identity struct {
	key   addrKey
	known bool // whose it is
	kind  Kind
	pod   Pod
	// ended is when it ended; meaningless while it is live.
	live  bool
	ended time.Duration
}
