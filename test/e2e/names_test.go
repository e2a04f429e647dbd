package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// TestNamesManifest reads what is applied, and holds that every object has a name of its
// own and that no pod has more of a search path than it may.
func TestNamesManifest(t *testing.T) {
	w := &namesFixture{nodes: []*cluster.Node{{Name: "a"}, {Name: "b"}}, coreDNS: "10.96.0.1"}
	text, err := w.manifest()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		var o metav1.Unstructured
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		id := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
		if seen[id] || o.GetName() == "" {
			t.Errorf("%q is there twice, or without a name", id)
		}
		seen[id] = true
	}
	for _, pod := range append(ordinaryPods(), "host-1", "node-1", "many", "odd", "none", "stub", "unready") {
		if !seen["Pod names/"+pod] {
			t.Errorf("there is no pod %s", pod)
		}
	}
	all := append([]string{"names.svc.cluster.local", "svc.cluster.local", "cluster.local"}, searchDomains()...)
	if n, size := len(all), len(strings.Join(all, " ")); n != maxSearchDomains || size != maxSearchLength {
		t.Errorf("%d search domains of %d characters, want %d of %d", n, size, maxSearchDomains, maxSearchLength)
	}
	for _, domain := range all {
		if len(domain) > 253 {
			t.Errorf("%s is longer than a name can be", domain)
		}
		for label := range strings.SplitSeq(domain, ".") {
			if len(label) > 63 {
				t.Errorf("the label %s of %s is longer than 63", label, domain)
			}
		}
	}
}

// TestCheckAnswers holds that a wrong answer, a missing one and one of another question are
// faults.
func TestCheckAnswers(t *testing.T) {
	list := []question{q("host a", "10.0.0.1", "10.0.0.2"), none("host b").orForResolver("go", "= 10.0.0.9"), q("host c", "1 2 3").forResolver("musl", "< 1 2 3")}
	const good = `musl host a = 10.0.0.1 10.0.0.2
musl host b ! none
musl host c = 1 3
glibc host a = 10.0.0.1 10.0.0.2
glibc host b ! none
glibc host c = 1 2 3
go host a = 10.0.0.1 10.0.0.2
go host b = 10.0.0.9
go host c = 1 2 3
`
	for _, tt := range []struct {
		name, old, new string
		fault          bool
	}{
		{"as wanted", "", "", false},
		{"an address less", "glibc host a = 10.0.0.1 10.0.0.2", "glibc host a = 10.0.0.1", true},
		{"an address more", "go host a = 10.0.0.1", "go host a = 10.0.0.0 10.0.0.1", true},
		{"the one of two", "go host b = 10.0.0.9", "go host b ! none", false},
		{"neither of two", "go host b = 10.0.0.9", "go host b = 10.0.0.8", true},
		{"no such name", "go host a = 10.0.0.1 10.0.0.2", "go host a ! none", true},
		{"nobody answered", "glibc host b ! none", "glibc host b ! again", true},
		{"none of those that would do", "musl host c = 1 3", "musl host c =", true},
		{"one that would not do", "musl host c = 1 3", "musl host c = 1 4", true},
		{"no answer at all", "musl host c = 1 3", "musl host c ! none", true},
		{"a line less", "go host c = 1 2 3\n", "", true},
		{"another question", "go host c", "go host d", true},
		{"another resolver", "go host c", "musl host c", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := checkAnswers(strings.Replace(good, tt.old, tt.new, 1), list, resolvers()); (err != nil) != tt.fault {
				t.Errorf("the error is %v, want one: %t", err, tt.fault)
			}
		})
	}
}

// TestDifferences holds what is a difference from CoreDNS.
func TestDifferences(t *testing.T) {
	const query, reply = "udp 0 x.test A", "NOERROR qr aa rd; ;x.test. IN  A; answer x.test. 0 IN A 192.0.2.1; authority ; additional "
	ours := strings.Replace(reply, "rd;", "rd ra;", 1)
	line := func(ttl, text string) string { return "a:53\t" + query + "\t" + ttl + "\t" + text + "\n" }
	for _, tt := range []struct {
		name, out string
		same      bool
	}{
		{"the same", line("30", ours) + line("7", reply), true},
		{"the case of letters", line("30", strings.ReplaceAll(ours, "x.", "X.")) + line("7", reply), true},
		{"without RA", line("30", reply) + line("7", reply), false},
		{"another address", line("30", strings.ReplaceAll(ours, "2.1", "2.2")) + line("7", reply), false},
		{"a TTL that is too long", line("31", ours) + line("7", reply), false},
		{"no reply of either", line("0", "i/o timeout") + line("0", "i/o timeout"), false},
		{"a line less", line("30", ours), false},
		{"another query", strings.ReplaceAll(line("30", ours), "udp 0", "tcp 0") + line("7", reply), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			left, err := differences(tt.out, []string{query}, 1, maxTTL)
			if (err == nil) != tt.same || (len(left) == 0) != tt.same {
				t.Errorf("alike: %t, want %t: %v, %v", err == nil, tt.same, left, err)
			}
		})
	}
}
