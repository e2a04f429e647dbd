package authority

import (
	"net/netip"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

// ResponsePolicies are the response policy zones of a server block, the first of which comes before the others.
type ResponsePolicies interface {
	// NameRule returns the first rule that is about name, which is lower case and in wire form, and that applies to the
	// client; nil for none. byClient says that another client may get another rule. It allocates only for a rule.
	NameRule(name []byte, c PolicyClient) (r *PolicyRule, byClient bool)
	// AddrRule is NameRule for an address in a reply.
	AddrRule(addr netip.Addr, c PolicyClient) (r *PolicyRule, byClient bool)
	// HasAddrRules reports whether there may be rules about addresses.
	HasAddrRules() bool
	// Notify triggers a check of the zone with this name, as [Zones.Notify].
	Notify(origin []byte, from netip.Addr) NotifyResult
}

// PolicyClient is the client that rules are looked up for.
type PolicyClient interface {
	// Namespace returns the namespace of the client's pod, "" for none. known is false for an address that may be a pod's which
	// is not known yet.
	Namespace() (namespace string, known bool)
}

// PolicyAction is what a rule does with a reply (draft-vixie-dnsop-dns-rpz, 3).
type PolicyAction uint8

const (
	UnknownPolicy PolicyAction = iota // no action that is supported
	PolicyPassthru
	PolicyNXDomain
	PolicyNoData
	PolicyDrop
	PolicyTCPOnly
	PolicyRedirect  // an alias of another name
	PolicyLocalData // other records
	NumPolicyActions
)

// String returns the word for metrics and explanations.
func (a PolicyAction) String() string {
	return [...]string{"", "passthru", "nxdomain", "nodata", "drop", "tcp_only", "redirect", "local_data"}[a]
}

// PolicyRule is a rule of a response policy zone.
type PolicyRule struct {
	Action PolicyAction
	// Audit says that the rule is only counted.
	Audit bool
	// Zone is the name of the response policy zone, Trigger the owner name of the rule.
	Zone    wire.Name
	Trigger []byte
	// Target is where a redirect leads. It may begin with the label *, in whose place the qname comes.
	Target []byte
	// AddData adds the records of local data that answer a query for qtype. It is nil for other actions.
	AddData func(r *wire.Reply, qtype uint16)
	// Counts count the queries by action: denied, and those in audit mode.
	Counts *[2][NumPolicyActions]atomic.Uint64
}

// Count counts a query that r applies to.
func (r *PolicyRule) Count() {
	mode := 0
	if r.Audit {
		mode = 1
	}
	if r.Counts != nil {
		r.Counts[mode][r.Action].Add(1)
	}
}
