// Internal: feeds a view without an API server.

package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// policyFixture feeds the policies and pods of a view of the node n1.
type policyFixture struct {
	t     *testing.T
	view  *View
	table *dnspolicy.Table
}

func newPolicyFixture(t *testing.T) *policyFixture {
	t.Helper()
	v := emptyView()
	v.node = "n1"
	f := &policyFixture{t, v, dnspolicy.NewTable()}
	v.policies = newPolicySet(v, f.table, new(dnspolicy.Counters), nil)
	return f
}

// list sends empty lists of both kinds.
func (f *policyFixture) list() {
	handlerFixture{f.view, dnsPolicies}.list()
	handlerFixture{f.view, pods}.list()
}

func (f *policyFixture) put(o metav1.Object) {
	r := dnsPolicies
	if _, ok := o.(*corev1.Pod); ok {
		r = pods
	}
	handlerFixture{f.view, r}.put(o)
}

func (f *policyFixture) drop(o metav1.Object) {
	r := dnsPolicies
	if _, ok := o.(*corev1.Pod); ok {
		r = pods
	}
	handlerFixture{f.view, r}.drop(o)
}

// bound returns the policies that bind a client as NAMESPACE/NAME.
func (f *policyFixture) bound(client string) string {
	var list []string
	for _, p := range f.table.ClassOf(netip.MustParseAddr(client)).Policies() {
		list = append(list, p.Namespace+"/"+p.Name)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (f *policyFixture) want(when string, by map[string]string) {
	f.t.Helper()
	for client, want := range by {
		if got := f.bound(client); got != want {
			f.t.Errorf("%s: %s is bound by %q, want %q", when, client, got, want)
		}
	}
}

// allows reports whether a client may ask for a name.
func (f *policyFixture) allows(client, name string) bool {
	n, err := wire.ParseName(name)
	noError(f.t, err)
	return f.table.ClassOf(netip.MustParseAddr(client)).Judge([]byte(n), nil).Policy == nil
}

func policyObject(ns, name string, labels map[string]string, allow ...string) *dnsPolicy {
	return &dnsPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: dnsPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: labels}, Allow: allow}}
}

func labelledPod(ns, name, addr string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr}}},
	}
}

// TestPolicySet: policies bind the pods of their namespace that they select, as long as both are there.
func TestPolicySet(t *testing.T) {
	f := newPolicyFixture(t)
	web, db := map[string]string{"app": "web"}, map[string]string{"app": "db"}
	p, all, other := policyObject("a", "p", web, "a.test"), policyObject("a", "all", nil), policyObject("b", "p", web)
	f.put(p)
	f.put(labelledPod("a", "w", "10.0.0.1", web))
	f.want("before the lists", map[string]string{"10.0.0.1": ""})
	if f.table.Known() || f.view.Loaded() {
		t.Error("the policies are known before the lists")
	}
	f.list()
	if !f.table.Known() {
		t.Error("the policies are not known")
	}
	f.want("after empty lists", map[string]string{"10.0.0.1": ""})
	f.put(p)
	f.put(labelledPod("a", "w", "10.0.0.1", web))
	f.put(labelledPod("a", "d", "10.0.0.2", db))
	f.put(labelledPod("b", "w", "fd00::3", web))
	f.want("one policy", map[string]string{"10.0.0.1": "a/p", "10.0.0.2": "", "fd00::3": "", "10.0.0.9": ""})
	f.put(all)
	f.put(other)
	f.want("three policies", map[string]string{"10.0.0.1": "a/all a/p", "10.0.0.2": "a/all", "fd00::3": "b/p"})
	f.put(labelledPod("a", "d", "10.0.0.2", web))
	f.put(labelledPod("a", "w", "10.0.0.1", db))
	f.want("other labels", map[string]string{"10.0.0.1": "a/all", "10.0.0.2": "a/all a/p"})
	f.drop(all)
	f.want("a policy is gone", map[string]string{"10.0.0.1": "", "10.0.0.2": "a/p"})
	f.drop(labelledPod("a", "d", "10.0.0.2", web))
	f.put(labelledPod("b", "new", "10.0.0.2", nil))
	f.want("another pod has the address", map[string]string{"10.0.0.2": ""})
	host := labelledPod("a", "host", "10.0.0.4", web)
	host.Spec.HostNetwork = true
	elsewhere := labelledPod("a", "elsewhere", "10.0.0.5", web)
	elsewhere.Spec.NodeName = "n2"
	ended := labelledPod("a", "ended", "10.0.0.6", web)
	ended.Status.Phase = corev1.PodSucceeded
	for _, pod := range []*corev1.Pod{host, elsewhere, ended} {
		f.put(pod)
	}
	f.want("pods without an address of their own on the node", map[string]string{"10.0.0.4": "", "10.0.0.5": "", "10.0.0.6": ""})
	handlerFixture{f.view, dnsPolicies}.list(other)
	if st, ok := f.view.PolicyStats(); !ok || st.Policies != 1 || st.Bound != 1 {
		t.Errorf("after a list of one policy: %+v", st)
	}
}

// TestPolicyAddresses: an address that several pods claim belongs to the one that stays, or all of their policies bind it.
func TestPolicyAddresses(t *testing.T) {
	f := newPolicyFixture(t)
	f.list()
	f.put(policyObject("a", "p", nil, "a.test"))
	f.put(policyObject("b", "p", nil, "b.test"))
	const addr = "10.0.0.1"
	f.put(terminating(labelledPod("a", "old", addr, nil)))
	f.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "pending"}, Spec: corev1.PodSpec{NodeName: "n1"}})
	f.want("a terminating pod, while another one waits", map[string]string{addr: "a/p"})
	f.put(labelledPod("b", "new", addr, nil))
	f.want("a new pod", map[string]string{addr: "b/p"})
	f.put(labelledPod("a", "third", addr, nil))
	f.want("two pods", map[string]string{addr: "a/p b/p"})
	f.drop(labelledPod("b", "new", addr, nil))
	f.drop(labelledPod("a", "third", addr, nil))
	f.want("the terminating pod alone", map[string]string{addr: "a/p"})
}

// TestPolicyClasses: the same policies make the same class, what changes makes another one, and what does not change nothing.
func TestPolicyClasses(t *testing.T) {
	f := newPolicyFixture(t)
	f.list()
	f.put(policyObject("a", "p", nil, "a.test"))
	f.put(labelledPod("a", "w1", "10.0.0.1", nil))
	f.put(labelledPod("a", "w2", "10.0.0.2", nil))
	class := func(addr string) *dnspolicy.Class { return f.table.ClassOf(netip.MustParseAddr(addr)) }
	first := class("10.0.0.1")
	if first == nil || class("10.0.0.2") != first {
		t.Fatalf("the classes are %v and %v", first, class("10.0.0.2"))
	}
	ready := labelledPod("a", "w1", "10.0.0.1", nil)
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	f.put(ready)
	f.put(policyObject("a", "p", nil, "a.test"))
	f.put(policyObject("b", "p", nil, "a.test"))
	f.put(labelledPod("c", "w3", "10.0.0.3", nil))
	if class("10.0.0.1") != first || class("10.0.0.1").Policies()[0] != first.Policies()[0] {
		t.Error("the class has changed without a change")
	}
	f.put(policyObject("a", "p", nil, "b.test"))
	if second := class("10.0.0.1"); second == first || second.ID == first.ID || f.allows("10.0.0.1", "a.test") || !f.allows("10.0.0.1", "b.test") {
		t.Error("the class has not changed")
	}
	if first.Judge([]byte("\x01a\x04test\x00"), nil).Policy != nil {
		t.Error("a class has changed")
	}
}

// TestPolicyMark: the mark moves with each change of what binds a client, and with no other.
func TestPolicyMark(t *testing.T) {
	f := newPolicyFixture(t)
	f.view.index.clients.acquire(epoch.New(make([]atomic.Uint64, epoch.Words(4)), 1, 4))
	f.list()
	for _, c := range []struct {
		name  string
		do    func()
		moves bool
	}{
		{"a policy that binds nobody", func() { f.put(policyObject("a", "p", map[string]string{"x": "y"})) }, false},
		{"a policy that binds a pod", func() { f.put(policyObject("a", "q", nil)) }, true},
		{"other names", func() { f.put(policyObject("a", "q", nil, "a.test")) }, true},
		{"the same names", func() { f.put(policyObject("a", "q", nil, "a.test")) }, false},
		{"it is gone", func() { f.drop(policyObject("a", "q", nil)) }, true},
	} {
		f.put(labelledPod("a", "w", "10.0.0.1", nil))
		before := f.table.Mark()
		c.do()
		if moved := f.table.Mark() != before; moved != c.moves {
			t.Errorf("%s: the mark has moved: %t", c.name, moved)
		}
	}
}

// TestPolicyBounds: what is larger than the bounds allows nothing, and binds nobody less.
func TestPolicyBounds(t *testing.T) {
	f := newPolicyFixture(t)
	f.list()
	names := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("n%d.test", i))
		}
		return list
	}
	f.put(labelledPod("a", "w", "10.0.0.1", nil))
	f.put(policyObject("a", "p", nil, names(maxPolicyNames)...))
	if !f.allows("10.0.0.1", "n9999.test") {
		t.Error("as many names as possible are too many")
	}
	f.put(policyObject("a", "p", nil, names(maxPolicyNames+1)...))
	if f.allows("10.0.0.1", "n1.test") {
		t.Error("a policy with too many names allows one")
	}
	if n := f.view.Stats().Faults; n != 1 {
		t.Errorf("%d faults, want 1", n)
	}
	for i := range 40 {
		f.put(policyObject("b", fmt.Sprint("p", i), map[string]string{"i": fmt.Sprint(i)}, names(maxPolicyNames)...))
	}
	f.put(labelledPod("b", "first", "10.0.0.2", map[string]string{"i": "0"}))
	f.put(labelledPod("b", "last", "10.0.0.3", map[string]string{"i": "39"}))
	f.put(labelledPod("b", "other", "10.0.0.8", nil))
	if !f.allows("10.0.0.2", "n1.test") || f.allows("10.0.0.3", "n1.test") || f.allows("10.0.0.8", "n1.test") {
		t.Error("the policies of a namespace are not bounded, or not only the last ones")
	}
	if n := f.view.policies.namespaces["b"].bytes; n > maxNamespacePolicies+40*policyBytes || n < maxNamespacePolicies/2 {
		t.Errorf("%d bytes are kept", n)
	}
	for i := range 40 {
		f.drop(policyObject("b", fmt.Sprint("p", i), nil))
	}
	if n := f.view.policies.namespaces["b"].bytes; n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	for i := range maxPodPolicies + 1 {
		f.put(policyObject("c", fmt.Sprint("p", i), nil, "a.test"))
		f.put(labelledPod("c", "w", "10.0.0.4", nil))
		if allowed := f.allows("10.0.0.4", "a.test"); allowed != (i < maxPodPolicies) {
			t.Fatalf("%d policies: a.test is allowed: %t", i+1, allowed)
		}
	}
	f.put(labelledPod("a", "labels", "10.0.0.5", map[string]string{"x": strings.Repeat("y", maxPodLabels)}))
	f.put(policyObject("a", "selects", map[string]string{"app": "web"}))
	f.want("a pod with too many labels", map[string]string{"10.0.0.5": "a/p a/selects"})
}

// TestPolicyObjects: names in all spellings, and what the schema excludes.
func TestPolicyObjects(t *testing.T) {
	f := newPolicyFixture(t)
	f.list()
	f.put(labelledPod("a", "w", "10.0.0.1", nil))
	o := policyObject("a", "p", nil, "API.Example.com.", "*.cdn.test", "*", "*.", ".", "", "a..b", "x.*.test", strings.Repeat("a", 64)+".test")
	o.Spec.AllowServices = []dnsPolicyService{{Name: "web"}, {Namespace: "b"}, {Namespace: "b c"}}
	o.Spec.PodSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Sometimes"}}}
	f.put(o)
	for name, want := range map[string]bool{"api.example.com": true, "x.cdn.test": true, "cdn.test": false, "x.y.test": false, "test": false, ".": false} {
		if got := f.allows("10.0.0.1", name); got != want {
			t.Errorf("%s is allowed: %t", name, got)
		}
	}
	c := f.table.ClassOf(netip.MustParseAddr("10.0.0.1"))
	for labels, want := range map[string]bool{"\x03web\x01a": true, "\x02db\x01a": false, "\x02db\x01b": true} {
		if got := c.Judge([]byte("\x01x\x00"), dnspolicy.Service(labels)).Policy == nil; got != want {
			t.Errorf("Service %q is allowed: %t", labels, got)
		}
	}
	if n := f.view.Stats().Faults; n != 1 {
		t.Errorf("%d faults, want 1", n)
	}
	foreign := policyObject("a", "foreign", nil)
	foreign.APIVersion = "kuadrant.io/v1"
	f.put(foreign)
	f.want("a policy of another group", map[string]string{"10.0.0.1": "a/p"})
	copied := o.DeepCopyObject().(*dnsPolicy)
	copied.Spec.Allow[0], copied.Spec.AllowServices[0].Name = "", ""
	if o.Spec.Allow[0] == "" || o.Spec.AllowServices[0].Name == "" {
		t.Error("a copy shares memory")
	}
}

// TestPolicyRandom: after any events the table is what the objects say.
func TestPolicyRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(50, 3))
	f := newPolicyFixture(t)
	f.list()
	type podState struct{ addr, label string }
	pods, policies := map[[2]string]podState{}, map[[2]string]string{}
	for i := range 4000 {
		key := [2]string{fmt.Sprint("ns", r.IntN(3)), fmt.Sprint("o", r.IntN(4))}
		label := fmt.Sprint("l", r.IntN(3))
		switch r.IntN(5) {
		case 0, 1:
			s := podState{fmt.Sprintf("10.0.%s.%s", key[0][2:], key[1][1:]), label}
			pods[key] = s
			f.put(labelledPod(key[0], key[1], s.addr, map[string]string{"l": label}))
		case 2:
			delete(pods, key)
			f.drop(labelledPod(key[0], key[1], "10.0.0.1", nil))
		case 3:
			policies[key] = label
			f.put(policyObject(key[0], key[1], map[string]string{"l": label}, fmt.Sprintf("n%d.test", r.IntN(3))))
		case 4:
			delete(policies, key)
			f.drop(policyObject(key[0], key[1], nil))
		}
		if i%7 != 0 {
			continue
		}
		want := make(map[string]string)
		for ns := range 3 {
			for o := range 4 {
				want[fmt.Sprintf("10.0.%d.%d", ns, o)] = ""
			}
		}
		for key, s := range pods {
			var list []string
			for p, l := range policies {
				if p[0] == key[0] && l == s.label {
					list = append(list, p[0]+"/"+p[1])
				}
			}
			slices.Sort(list)
			want[s.addr] = strings.Join(list, " ")
		}
		f.want(fmt.Sprint("event ", i), want)
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, ns := range f.view.policies.namespaces {
		for _, rec := range ns.policies {
			if (rec.compiled != nil) != (rec.pods > 0) {
				t.Errorf("%s/%s binds %d pods, and is compiled: %t", rec.namespace, rec.name, rec.pods, rec.compiled != nil)
			}
		}
	}
}

// TestDraftPolicy: a draft binds the pods that it selects, together with the policies in force or in place of one, and changes none of them.
func TestDraftPolicy(t *testing.T) {
	f := newPolicyFixture(t)
	web := map[string]string{"app": "web"}
	f.list()
	f.put(policyObject("a", "p", web, "a.test"))
	f.put(labelledPod("a", "w", "10.0.0.1", web))
	f.put(labelledPod("a", "d", "10.0.0.2", nil))
	f.put(labelledPod("b", "w", "10.0.0.3", web))
	draft := func(name, spec string) string {
		return "apiVersion: nodens.dev/v1alpha1\nkind: DNSPolicy\nmetadata: {namespace: a, name: " + name + "}\nspec: {" + spec + "}\n"
	}
	for name, c := range map[string]struct {
		draft string
		want  map[string]string // by address: the names of a, b and c that may be asked for
	}{
		"another one":   {draft("q", `podSelector: {matchLabels: {app: web}}, allow: [b.test]`), map[string]string{"10.0.0.1": "ab"}},
		"in its place":  {draft("p", `podSelector: {}, allow: [b.test]`), map[string]string{"10.0.0.1": "b", "10.0.0.2": "b"}},
		"in audit mode": {draft("q", `mode: Audit, podSelector: {}, deny: [a.test], default: Allow`), map[string]string{"10.0.0.1": "bc", "10.0.0.2": "bc"}},
		"without pods":  {strings.Replace(draft("q", `podSelector: {}`), "namespace: a", "namespace: c", 1), map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			classes, err := f.view.DraftPolicy([]byte(c.draft))
			noError(t, err)
			got := make(map[string]string)
			for addr, class := range classes {
				for _, name := range []string{"a", "b", "c"} {
					if class.Judge([]byte("\x01"+name+"\x04test\x00"), nil).Policy == nil {
						got[addr.String()] += name
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("allowed (-want +got):\n%s", diff)
			}
		})
	}
	f.want("after the drafts", map[string]string{"10.0.0.1": "a/p", "10.0.0.2": ""})
	for draft, want := range map[string]string{
		"":  "no kind DNSPolicy",
		"x": "cannot unmarshal",
		strings.Replace(draft("p", ""), "v1alpha1", "v2", 1):     "no kind DNSPolicy of nodens.dev/v1alpha1",
		strings.Replace(draft("p", ""), "name: p", "name: P", 1): "no metadata with a namespace and a name",
		draft("p", "alow: [a.test]"):                             "alow",
		draft("p", `allow: ["*"]`):                               `"*" is neither a name`,
		draft("p", `podSelector: {matchLabels: {"/": ""}}`):      "podSelector is not valid",
	} {
		if _, err := f.view.DraftPolicy([]byte(draft)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %q", draft, err, want)
		}
	}
}
