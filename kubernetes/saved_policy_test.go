// Internal: makes invalid records.

package kubernetes

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/file"
)

// openPolicies opens a view with policies that is saved to path.
func openPolicies(t *testing.T, cfg *config.Kubernetes, closed bool) *policyFixture {
	t.Helper()
	table := dnspolicy.NewTable()
	table.Closed = closed
	v, err := Open(cfg, Options{Now: testClock, Node: "n1", Policies: table})
	noError(t, err)
	return &policyFixture{t, v, table}
}

// TestSavedPolicies: policies bind pods from a saved view until the lists are there, and what the lists lack is gone then.
func TestSavedPolicies(t *testing.T) {
	cfg := savedConfig(t, filepath.Join(t.TempDir(), "view"))
	f := openPolicies(t, cfg, true)
	if f.view.Loaded() {
		t.Error("an empty view is loaded")
	}
	web := map[string]string{"app": "web"}
	p := policyObject("a", "p", web, "a.test", "*.b.test")
	p.Spec.Deny, p.Spec.AllowServices, p.Spec.DeniedReply = []string{"x.b.test"}, []dnsPolicyService{{}, {Name: "web", Namespace: "b"}}, "NXDomain"
	p.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"web", "db"}}, {Key: "old", Operator: metav1.LabelSelectorOpDoesNotExist}}
	f.list()
	f.put(p)
	f.put(policyObject("a", "large", nil, make([]string, maxPolicyNames+1)...))
	f.put(labelledPod("a", "w", "10.0.0.1", web))
	f.put(labelledPod("a", "gone", "10.0.0.2", web))
	f.put(labelledPod("b", "w", "fd00::3", web))
	want := map[string]string{"10.0.0.1": "a/large a/p", "10.0.0.2": "a/large a/p", "fd00::3": ""}
	f.want("before", want)
	noError(t, file.Replace(cfg.Save, savedView{f.view}.writeSaved))

	back := openPolicies(t, cfg, true)
	back.want("restored", want)
	if !back.view.knowsPolicies() || back.table.Known() {
		t.Errorf("known to the view: %t, to the table: %t", back.view.knowsPolicies(), back.table.Known())
	}
	if back.table.ID(netipAddr(t, "10.0.0.9")) == 0 {
		t.Error("a client that is not in the saved view is known")
	}
	for name, allowed := range map[string]bool{"a.test": true, "y.b.test": true, "x.b.test": false, "b.test": false} {
		if got := back.allows("10.0.0.1", name); got != allowed {
			t.Errorf("%s is allowed: %t", name, got)
		}
	}
	for key, rec := range f.view.policies.namespaces["a"].policies {
		other := back.view.policies.namespaces["a"].policies[key]
		if other == nil || !rec.same(other) || rec.bytes() != other.bytes() || rec.size != other.size {
			t.Errorf("%s comes back as %+v", key, other)
		}
	}
	if a, b := f.view.policies.namespaces["a"].bytes, back.view.policies.namespaces["a"].bytes; a != b {
		t.Errorf("%d bytes come back as %d", a, b)
	}
	handlerFixture{back.view, dnsPolicies}.list(p)
	back.want("with a list of policies", map[string]string{"10.0.0.1": "a/p", "10.0.0.2": "a/p"})
	handlerFixture{back.view, pods}.list(labelledPod("a", "w", "10.0.0.1", nil), labelledPod("b", "w", "fd00::3", web))
	if !back.table.Known() {
		t.Error("after both lists the table does not know")
	}
	back.want("with both lists", map[string]string{"10.0.0.1": "", "fd00::3": ""})
	if back.table.ID(netipAddr(t, "10.0.0.2")) != 1 {
		t.Error("a pod that is gone is known")
	}
	handlerFixture{back.view, dnsPolicies}.list(p)
	back.want("listed again", map[string]string{"10.0.0.1": ""})
}

// TestSavedWithoutPolicies: a file of an agent without policies says nothing about them, and one with policies is read without.
func TestSavedWithoutPolicies(t *testing.T) {
	cfg := savedConfig(t, filepath.Join(t.TempDir(), "view"))
	v, _ := openSaved(t, cfg)
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	handlerFixture{v, pods}.put(labelledPod("a", "w", "10.0.0.1", nil))
	noError(t, file.Replace(cfg.Save, savedView{v}.writeSaved))
	back := openPolicies(t, cfg, true)
	if !back.view.Synced() || back.view.knowsPolicies() || back.table.ID(netipAddr(t, "10.0.0.1")) != 1 {
		t.Error("the pod of a file without policies is bound by none")
	}
	f := openPolicies(t, cfg, false)
	f.list()
	f.put(policyObject("a", "p", nil))
	f.put(labelledPod("a", "w", "10.0.0.1", nil))
	noError(t, file.Replace(cfg.Save, savedView{f.view}.writeSaved))
	v, log := openSaved(t, cfg)
	if !v.Synced() || !strings.Contains(log, "saved view restored") {
		t.Errorf("a file with policies is not read without: %s", log)
	}
}

// TestSavedPolicyChecked: a record that no object makes is refused.
func TestSavedPolicyChecked(t *testing.T) {
	valid := func() *savedPolicy {
		return &savedPolicy{Namespace: "a", Name: "p", Selector: "app in (db,web),!old", Allow: "\x00\x01a\x00\x01\x01b\x04test\x00", Services: "\x03web\x01a\x00\x01b\x00", Size: 3}
	}
	if err := (&savedRecord{Policy: valid()}).check(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a. false", "b.test. true"}, func() (list []string) {
		for name, below := range valid().record().allow.all() {
			list = append(list, name.String()+map[bool]string{true: " true", false: " false"}[below])
		}
		return list
	}()); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*savedPolicy){
		"namespace":        func(p *savedPolicy) { p.Namespace = "A b" },
		"name":             func(p *savedPolicy) { p.Name = "" },
		"selector":         func(p *savedPolicy) { p.Selector = "a in (" },
		"kind of an entry": func(p *savedPolicy) { p.Allow = "\x02\x01a\x00" },
		"no root":          func(p *savedPolicy) { p.Deny = "\x00\x01a" },
		"no name":          func(p *savedPolicy) { p.Deny = "\x00" },
		"root":             func(p *savedPolicy) { p.Deny = "\x00\x00" },
		"cut label":        func(p *savedPolicy) { p.Allow = "\x00\x05a\x00" },
		"long label":       func(p *savedPolicy) { p.Allow = nameList("\x00\x40" + strings.Repeat("a", 64) + "\x00") },
		"long name":        func(p *savedPolicy) { p.Allow = nameList("\x00" + strings.Repeat("\x01a", 128) + "\x00") },
		"capital letter":   func(p *savedPolicy) { p.Allow = "\x00\x01A\x00" },
		"Service":          func(p *savedPolicy) { p.Services = "\x01a\x01b\x01c\x00" },
		"cut Service":      func(p *savedPolicy) { p.Services = "\x01a" },
		"size":             func(p *savedPolicy) { p.Size = -1 },
	} {
		p := valid()
		change(p)
		if err := (&savedRecord{Policy: p}).check(); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	if err := (&savedRecord{Policy: valid(), Import: true}).check(); err == nil {
		t.Error("a policy of ServiceImports is accepted")
	}
}
