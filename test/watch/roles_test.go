package watch

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// roleMode is a way to run the agent, and the resources that it reads. docs/reference/corefile/kubernetes.md has them.
type roleMode struct {
	name, options string
	env           []string
	resources     []string
}

func roleModes() []roleMode {
	const node, zone = "NODE_NAME=node-a", "NODE_ZONE=zone-a"
	return []roleMode{
		{"scope node", "", []string{node, zone}, []string{"services", "namespaces", "endpointslices", "pods"}},
		{"scope node, zone unknown", "", []string{node, "NODE_ZONE="}, []string{"services", "namespaces", "endpointslices", "pods", "nodes"}},
		{"scope cluster", "scope cluster", []string{node, zone}, []string{"services", "namespaces", "endpointslices", "pods"}},
		{"topology off", "topology off", []string{node, "NODE_ZONE="}, []string{"services", "namespaces", "endpointslices", "pods"}},
		{"noendpoints", "noendpoints", []string{node, zone}, []string{"services", "namespaces", "pods"}},
	}
}

// rules returns what the mode needs, without the resource left out.
func (m roleMode) rules(left string) (rules []rbacv1.PolicyRule) {
	for _, r := range m.resources {
		group, verbs := "", []string{"list", "watch"}
		switch r {
		case left:
			continue
		case "endpointslices":
			group = "discovery.k8s.io"
		case "nodes":
			verbs = []string{"get"}
		}
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{r}, Verbs: verbs})
	}
	return rules
}

// testRoles runs the agent in each mode with exactly the permissions of the mode: nothing is refused, and it answers. Without one of
// them, the agent says that it lacks this one, so no mode has one too many. Names of Services need no Pods and no Node.
func testRoles(t *testing.T, binary string, api *apiserver.Server, client kubernetes.Interface) {
	roles := client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "nodens", metav1.GetOptions{})
	check.NoError(t, err)
	grant := func(ctx context.Context, rules []rbacv1.PolicyRule) {
		current, err := roles.Get(ctx, role.Name, metav1.GetOptions{})
		check.NoError(t, err)
		current.Rules = rules
		_, err = roles.Update(ctx, current, metav1.UpdateOptions{})
		check.NoError(t, err)
	}
	defer grant(context.Background(), role.Rules)
	nodes := client.CoreV1().Nodes()
	_, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{})
	check.NoError(t, err)
	defer func() { check.NoError(t, nodes.Delete(context.Background(), "node-a", metav1.DeleteOptions{})) }()
	for _, m := range roleModes() {
		t.Run(m.name, func(t *testing.T) {
			grant(t.Context(), m.rules(""))
			a := startWith(t, binary, api, m.options, "", m.env...)
			a.process.Must(t, "the agent to be ready", peer.Get(nil, a.ready, http.StatusOK))
			a.process.Must(t, "an answer", a.says("kubernetes.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.0.1"))
			if refused := refusedResources(a.process.Tail()); len(refused) > 0 {
				t.Errorf("the API server refuses %v", refused)
			}
			a.process.Stop()
			for _, left := range m.resources {
				grant(t.Context(), m.rules(left))
				a := startWith(t, binary, api, m.options, "", m.env...)
				a.process.Must(t, "the agent to say that it lacks "+left, func(context.Context) error {
					if got := refusedResources(a.process.Tail()); !slices.Equal(got, []string{left}) {
						return fmt.Errorf("%v is refused", got)
					}
					return nil
				})
				if left == "pods" || left == "nodes" { // names are answered without them
					a.process.Must(t, "the agent to be ready", peer.Get(nil, a.ready, http.StatusOK))
					a.process.Must(t, "an answer", a.says("kubernetes.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.0.1"))
				}
				a.process.Stop()
			}
		})
	}
}

// refusedResources returns the resources that the API server refuses, by the agent's log.
func refusedResources(log string) (list []string) {
	for line := range strings.Lines(log) {
		switch {
		case strings.Contains(line, "API server rejects request"):
			_, rest, _ := strings.Cut(line, "resource=")
			name, _, _ := strings.Cut(rest, " ")
			name, _, _ = strings.Cut(name, ".") // its group
			list = append(list, strings.TrimSpace(name))
		case strings.Contains(line, "topology zone of the node unknown"):
			list = append(list, "nodes")
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
