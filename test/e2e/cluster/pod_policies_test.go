package cluster

// Inside the package: the rules are not exported.

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// policyTestPod returns a pod with the label app.
func policyTestPod(namespace, app, node, addr string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{PodIP: addr},
	}
}

func policyTestObjects(t *testing.T, specs ...string) policyObjects {
	t.Helper()
	o := policyObjects{
		pods: []corev1.Pod{
			policyTestPod("shop", "web", "node-a", "10.0.1.1"), policyTestPod("shop", "free", "node-a", "10.0.1.2"),
			policyTestPod("shop", "web", "node-b", "10.0.2.1"), policyTestPod("kube-system", "dns", "node-b", "10.0.2.2"),
		},
		namespaces: []corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", Labels: map[string]string{"name": "system"}}},
		},
	}
	for _, text := range specs {
		p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}
		if err := yaml.UnmarshalStrict([]byte(text), &p.Spec); err != nil {
			t.Fatal(err)
		}
		o.policies = append(o.policies, p)
	}
	return o
}

// TestPolicyRules: the rules for node-a's only pod that policies select.
func TestPolicyRules(t *testing.T) {
	o := policyTestObjects(t, `
podSelector: {matchLabels: {app: web}}
policyTypes: [Egress]
egress:
- to:
  - ipBlock: {cidr: 169.254.20.10/32}
  - namespaceSelector: {matchLabels: {name: system}}
    podSelector: {matchLabels: {app: dns}}
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]`, `
podSelector: {matchLabels: {app: web}}
policyTypes: [Egress, Ingress]
ingress: [{from: [{podSelector: {}}]}]
egress: [{ports: [{port: 443, protocol: TCP}]}]`)
	got, err := o.rules("node-a")
	if err != nil {
		t.Fatal(err)
	}
	const want = `*filter
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-ROUTER-OUTPUT - [0:0]
:POD-10.0.1.1-Eg - [0:0]
:POD-10.0.1.1-In - [0:0]
-A KUBE-ROUTER-INPUT -s 10.0.1.1 -j POD-10.0.1.1-Eg
-A KUBE-ROUTER-FORWARD -s 10.0.1.1 -j POD-10.0.1.1-Eg
-A POD-10.0.1.1-Eg -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
-A POD-10.0.1.1-Eg -d 169.254.20.10/32 -p UDP --dport 53 -j RETURN
-A POD-10.0.1.1-Eg -d 169.254.20.10/32 -p TCP --dport 53 -j RETURN
-A POD-10.0.1.1-Eg -d 10.0.2.2 -p UDP --dport 53 -j RETURN
-A POD-10.0.1.1-Eg -d 10.0.2.2 -p TCP --dport 53 -j RETURN
-A POD-10.0.1.1-Eg -p TCP --dport 443 -j RETURN
-A POD-10.0.1.1-Eg -j REJECT
-A KUBE-ROUTER-FORWARD -d 10.0.1.1 -j POD-10.0.1.1-In
-A POD-10.0.1.1-In -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
-A POD-10.0.1.1-In -s 10.0.1.1 -j RETURN
-A POD-10.0.1.1-In -s 10.0.1.2 -j RETURN
-A POD-10.0.1.1-In -s 10.0.2.1 -j RETURN
-A POD-10.0.1.1-In -j REJECT
COMMIT
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPolicyRulesUnsupported: a policy that cannot be enforced is an error, not a hole.
func TestPolicyRulesUnsupported(t *testing.T) {
	for name, spec := range map[string]string{
		"named port": "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: dns, protocol: UDP}]}]}",
		"port range": "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 1, endPort: 9, protocol: UDP}]}]}",
		"exception":  "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}",
		"selector":   "{podSelector: {matchExpressions: [{key: a, operator: Near}]}, policyTypes: [Egress]}",
	} {
		if _, err := policyTestObjects(t, spec).rules("node-a"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
