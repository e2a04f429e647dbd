package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
)

// DraftPolicy returns the classes of the node's pods if text, an object DNSPolicy as YAML or JSON, took the place of the policy of its name, and
// were enforced. Pods that it does not select are left out. The error says what is not valid. The view stays as it is.
func (v *View) DraftPolicy(text []byte) (map[netip.Addr]*dnspolicy.Class, error) {
	o, f := new(dnsPolicy), new(faults)
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		return nil, err
	}
	if o.APIVersion != policiesV1alpha1.String() || o.Kind != "DNSPolicy" || !isObjectName(o.Namespace) || !isObjectName(o.Name) {
		return nil, fmt.Errorf("it has no kind DNSPolicy of %s, or no metadata with a namespace and a name", policiesV1alpha1)
	}
	rec := convertPolicy(o, f)
	if f.n > 0 {
		return nil, errors.New(f.String())
	}
	rec.audit = false
	return v.policies.draft(rec), nil
}

// draft is [View.DraftPolicy] for a record.
func (s *policySet) draft(rec *policyRecord) map[netip.Addr]*dnspolicy.Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	classes, ns := make(map[netip.Addr]*dnspolicy.Class), s.namespaces[rec.namespace]
	if ns == nil {
		return classes
	}
	drafted := rec.compile()
	for _, p := range ns.pods {
		if !p.isBoundBy(rec) {
			continue
		}
		list := []*dnspolicy.Policy{drafted}
		for _, other := range p.policies {
			if other.name != rec.name {
				list = append(list, other.policy(s))
			}
		}
		for _, addr := range p.addrs {
			classes[addr] = dnspolicy.NewClass(dnspolicy.FirstID, list)
		}
	}
	return classes
}
