package kubernetes

import (
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
)

// policiesV1alpha1 is the API group of DNSPolicies. Their schema is in daemonset/components/dns-policy.
var policiesV1alpha1 = schema.GroupVersion{Group: "nodens.dev", Version: "v1alpha1"}

// dnsPolicy is a DNSPolicy: what the pods that it selects may ask for. It is a custom resource and always encoded as JSON.
type dnsPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              dnsPolicySpec `json:"spec"`
}

type dnsPolicySpec struct {
	PodSelector   metav1.LabelSelector `json:"podSelector"` // empty: all pods of the namespace
	Mode          string               `json:"mode"`        // "Enforce" or "Audit"
	Default       string               `json:"default"`     // "Allow" or "Deny", for names that no list has
	Allow         []string             `json:"allow"`       // name or *.name, as in NPEP-133
	Deny          []string             `json:"deny"`
	AllowServices []dnsPolicyService   `json:"allowServices"`
	DeniedReply   string               `json:"deniedReply"` // "Refused" or "NXDomain"
	EgressSet     bool                 `json:"egressSet"`
}

// dnsPolicyService is a Service whose names in the cluster's zones are allowed, or all Services of a namespace.
type dnsPolicyService struct {
	Namespace string `json:"namespace"` // "": that of the policy
	Name      string `json:"name"`      // "": all
}

// DeepCopyObject implements runtime.Object.
func (p *dnsPolicy) DeepCopyObject() runtime.Object {
	c := &dnsPolicy{TypeMeta: p.TypeMeta, Spec: p.Spec}
	p.DeepCopyInto(&c.ObjectMeta)
	p.Spec.PodSelector.DeepCopyInto(&c.Spec.PodSelector)
	c.Spec.Allow, c.Spec.Deny, c.Spec.AllowServices = slices.Clone(p.Spec.Allow), slices.Clone(p.Spec.Deny), slices.Clone(p.Spec.AllowServices)
	return c
}

const (
	// maxPolicyNames bounds the names and Services of a policy. The schema has the same bound.
	maxPolicyNames = 10_000
	// maxNamespacePolicies bounds the memory of the policies of a namespace, in bytes: tenants make them, and each agent keeps them.
	// 1,000 policies with 100 names each are less.
	maxNamespacePolicies = 4 << 20
	// maxEgressPolicies bounds the policies that have sets in the packet filter, maxNamespaceEgress those of a namespace.
	maxEgressPolicies, maxNamespaceEgress = 128, 16
	// maxEgressName bounds NAMESPACE/NAME of such a policy: names of sets have at most 255 bytes.
	maxEgressName = 240
	// policyBytes is what a policy takes besides its lists and its selector.
	policyBytes = 256
)

// policyRecord is what a view keeps of a DNSPolicy. What comes of it for pods is guarded by the lock of the policySet.
type policyRecord struct {
	namespace, name              string
	selector                     labels.Selector
	audit, allowOthers, nxdomain bool
	egress                       bool // it has sets in the packet filter
	allow, deny                  nameList
	services                     string // see [dnspolicy.Policy.AddService]; each with a zero byte behind it
	size                         int    // names and Services
	// tooLarge says that the policy is larger than the bounds: it has no names, and allows none.
	tooLarge bool

	seq      uint64            // another number for each record of a policySet
	pods     int               // of the node, that it binds
	compiled *dnspolicy.Policy // nil while it binds none
}

// nameList are the entries of a list, packed: a policy that binds no pod of the node takes little more than its names. Each is a byte,
// 1 for *.name and 0 for name, and the name in wire form.
type nameList string

// all returns the names, and whether they stand for those below them.
func (l nameList) all() iter.Seq2[wire.Name, bool] {
	return func(yield func(wire.Name, bool) bool) {
		for rest := string(l); rest != ""; {
			end := 1
			for rest[end] != 0 {
				end += 1 + int(rest[end])
			}
			if !yield(wire.Name(rest[1:end+1]), rest[0] == 1) {
				return
			}
			rest = rest[end+1:]
		}
	}
}

// newNameList packs the entries of a list. It leaves out what is no name: no query can ask for that.
func newNameList(list []string, f *faults) nameList {
	var b []byte
	for _, text := range list {
		base, below := strings.CutPrefix(text, "*.")
		name, err := wire.ParseName(base)
		if err != nil || name == wire.Root || strings.Contains(base, "*") {
			f.add("%q is neither a name nor *.NAME", text)
			continue
		}
		kind := byte(0)
		if below {
			kind = 1
		}
		b = append(append(b, kind), name...)
	}
	return nameList(b)
}

// convertPolicy converts a DNSPolicy to a record. The schema excludes what is not valid, but need not be in force: a selector that
// is not valid selects all pods of the namespace. The result shares no memory with o but strings.
func convertPolicy(o *dnsPolicy, f *faults) *policyRecord {
	s := &o.Spec
	rec := &policyRecord{
		namespace: o.Namespace, name: o.Name,
		audit: s.Mode == "Audit", allowOthers: s.Default == "Allow", nxdomain: s.DeniedReply == "NXDomain",
		egress: s.EgressSet,
		size:   len(s.Allow) + len(s.Deny) + len(s.AllowServices),
	}
	if n := len(rec.key()); rec.egress && n > maxEgressName {
		f.add("its namespace and name have %d bytes, so that it has no egressSet; at most %d are possible", n, maxEgressName)
		rec.egress = false
	}
	var err error
	if rec.selector, err = metav1.LabelSelectorAsSelector(&s.PodSelector); err != nil {
		f.add("podSelector is not valid, so that the policy binds all pods of its namespace: %v", err.Error())
		rec.selector = labels.Everything()
	}
	if rec.size > maxPolicyNames {
		f.add("%d names, so that the policy allows none; at most %d are possible", rec.size, maxPolicyNames)
		rec.cut()
		return rec
	}
	rec.allow, rec.deny = newNameList(s.Allow, f), newNameList(s.Deny, f)
	for _, svc := range s.AllowServices {
		if svc.Namespace == "" {
			svc.Namespace = o.Namespace
		}
		key, ok := namespaceKey(svc.Namespace)
		if svc.Name != "" {
			key, ok = serviceKey(svc.Name, svc.Namespace)
		}
		if !ok {
			f.add("Service %q in namespace %q is not valid as two DNS labels", svc.Name, svc.Namespace)
			continue
		}
		rec.services += key + "\x00"
	}
	return rec
}

// cut makes rec a policy that allows nothing.
func (rec *policyRecord) cut() {
	rec.tooLarge, rec.allowOthers, rec.allow, rec.deny, rec.services, rec.size = true, false, "", "", "", 0
}

// key identifies rec to the packet filter.
func (rec *policyRecord) key() string { return rec.namespace + "/" + rec.name }

// bytes returns the memory that rec takes.
func (rec *policyRecord) bytes() int {
	return policyBytes + len(rec.selector.String()) + len(rec.allow) + len(rec.deny) + len(rec.services)
}

// same reports whether nothing that rec decides differs in other.
func (rec *policyRecord) same(other *policyRecord) bool {
	return rec.selector.String() == other.selector.String() && rec.audit == other.audit && rec.allowOthers == other.allowOthers &&
		rec.nxdomain == other.nxdomain && rec.allow == other.allow && rec.deny == other.deny && rec.services == other.services && rec.tooLarge == other.tooLarge && rec.egress == other.egress
}

// policy returns the compiled policy. The lock of s is held.
func (rec *policyRecord) policy(s *policySet) *dnspolicy.Policy {
	if rec.compiled == nil {
		rec.compiled = rec.compile()
		rec.compiled.Counts = s.counters.Of(rec.namespace, rec.name)
		if rec.egress {
			rec.compiled.Set = s.egress.Of(rec.namespace, rec.name)
		}
	}
	return rec.compiled
}

// compile returns the policy, without counts and sets.
func (rec *policyRecord) compile() *dnspolicy.Policy {
	p := &dnspolicy.Policy{Namespace: rec.namespace, Name: rec.name, Audit: rec.audit, AllowOthers: rec.allowOthers, NXDomain: rec.nxdomain}
	for name, below := range rec.allow.all() {
		p.Add(name, below, false)
	}
	for name, below := range rec.deny.all() {
		p.Add(name, below, true)
	}
	for key := range strings.SplitSeq(strings.TrimSuffix(rec.services, "\x00"), "\x00") {
		if key != "" {
			p.AddService(key)
		}
	}
	return p
}

// putPolicy adds or replaces a DNSPolicy.
func (h *handler) putPolicy(obj runtime.Object, _ bool, f *faults) {
	o := obj.(*dnsPolicy)
	if o.APIVersion != "" && o.APIVersion != policiesV1alpha1.String() { // in a manifest: of another group
		return
	}
	if !isObjectName(o.Namespace) || !isObjectName(o.Name) { // not from an API server
		f.add("the namespace or the name is not valid")
		return
	}
	h.view.policies.put(convertPolicy(o, f), f)
}

func (h *handler) dropPolicy(ns, name string, _ uint64) { h.view.policies.drop(ns, name) }

// missingPolicies is missingObjects for policies.
func (h *handler) missingPolicies() (list [][2]string) {
	for _, o := range h.view.policies.all() {
		if _, ok := h.seen[objectKey(o[0], o[1])]; !ok {
			list = append(list, o)
		}
	}
	return list
}
