package kubernetes

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
)

// savedPolicy is a DNSPolicy in a saved view. Policies and the labels of pods bind until the first lists are complete.
type savedPolicy struct {
	Namespace, Name         string
	Selector                string
	Audit, Others, NXDomain bool
	TooLarge, Egress        bool
	Allow, Deny             nameList
	Services                string
	Size                    int
}

// savedLabels are the labels of a pod that policies may bind.
type savedLabels struct {
	Labels map[string]string
	// BindsAll is [policyPod.bindsAll].
	BindsAll bool
}

// saved returns all policies, and the labels of the pods by their keys. known says whether all of them are known.
func (s *policySet) saved() (policies []savedPolicy, pods map[string]savedLabels, known bool) {
	if s == nil {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pods = make(map[string]savedLabels)
	for _, ns := range s.namespaces {
		for _, rec := range ns.policies {
			policies = append(policies, savedPolicy{
				Namespace: rec.namespace, Name: rec.name, Selector: rec.selector.String(), Audit: rec.audit, Others: rec.allowOthers,
				NXDomain: rec.nxdomain, TooLarge: rec.tooLarge, Egress: rec.egress, Allow: rec.allow, Deny: rec.deny, Services: rec.services, Size: rec.size,
			})
		}
		for key, p := range ns.pods {
			pods[key] = savedLabels{p.labels, p.bindsAll}
		}
	}
	return policies, pods, s.policiesListed && s.podsListed
}

// check returns an error if no handler can make p.
func (p *savedPolicy) check(imported bool) error {
	_, err := labels.Parse(p.Selector)
	return firstViolated(
		requirement{isObjectName(p.Namespace) && isObjectName(p.Name) && !imported, "policy", p.Namespace + "/" + p.Name},
		requirement{err == nil, "selector", p.Selector},
		requirement{p.Allow.wellFormed() && p.Deny.wellFormed(), "names of a policy", p.Name},
		requirement{areServices(p.Services), "Services of a policy", p.Services},
		requirement{p.Size >= 0 && p.Size <= maxPolicyNames, "size of a policy", p.Size},
	)
}

// wellFormed reports whether l is a list that [newNameList] can make.
func (l nameList) wellFormed() bool {
	for rest := string(l); rest != ""; {
		if rest[0] > 1 {
			return false
		}
		end := 1
		for end < len(rest) && rest[end] != 0 {
			if rest[end] > wire.MaxLabel {
				return false
			}
			end += 1 + int(rest[end])
		}
		name := rest[1:min(end+1, len(rest))]
		if end >= len(rest) || end == 1 || len(name) > wire.MaxName || strings.IndexFunc(name, isUpper) >= 0 {
			return false
		}
		rest = rest[end+1:]
	}
	return true
}

// isUpper reports whether c is a capital letter, which is more than the length of a label.
func isUpper(c rune) bool { return 'A' <= c && c <= 'Z' }

// areServices reports whether text has Services as [convertPolicy] makes them.
func areServices(text string) bool {
	for text != "" {
		key, rest, ok := strings.Cut(text, "\x00")
		if !ok || !isLabels(key, 1) && !isLabels(key, 2) {
			return false
		}
		text = rest
	}
	return true
}

// record returns p, which has been checked, as a record.
func (p *savedPolicy) record() *policyRecord {
	rec := &policyRecord{
		namespace: p.Namespace, name: p.Name, audit: p.Audit, allowOthers: p.Others, nxdomain: p.NXDomain, tooLarge: p.TooLarge,
		egress: p.Egress, allow: p.Allow, deny: p.Deny, services: p.Services, size: p.Size,
	}
	rec.selector, _ = labels.Parse(p.Selector)
	return rec
}

// restorePod adds the pod of a saved view.
func (s *policySet) restorePod(p *savedPod) {
	if s == nil || !p.Here || p.Host {
		return
	}
	pod := &policyPod{addrs: unpackAddrs(p.IPs), labels: maps.Clone(p.Labels.Labels), bindsAll: p.Labels.BindsAll, terminating: p.Ending}
	namespace, _, _ := strings.Cut(p.Name, "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replacePod(namespace, p.Name, pod)
}

// fresh returns a policySet of v, to which a saved view is restored; nil for nil.
func (s *policySet) fresh(v *View) *policySet {
	if s == nil {
		return nil
	}
	return newPolicySet(v, dnspolicy.NewTable(), nil, nil)
}

// adopt makes s what other, of [policySet.fresh], was restored to. Until both lists are complete the policies of a saved view bind the
// pods of a saved view.
func (s *policySet) adopt(other *policySet) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespaces, s.claims, s.filtered, s.lastSeq, s.restored = other.namespaces, other.claims, other.filtered, other.lastSeq, true
	s.publish()
}
