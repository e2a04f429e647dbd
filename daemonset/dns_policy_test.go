package daemonset

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestDNSPolicy: the overlay adds the flag, the CustomResourceDefinition and the rights to watch policies, and nothing else. What the
// schema allows is tested in test/install.
func TestDNSPolicy(t *testing.T) {
	objects := renderOverlay(t, "dns-policy")
	checkAccepted(t, objects)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	c := &set.Spec.Template.Spec.Containers[0]
	if last := len(c.Args) - 1; c.Args[last] != "-dns-policies=open" {
		t.Errorf("arguments %q", c.Args)
	} else {
		c.Args = c.Args[:last]
	}
	role, _ := findObject[*rbacv1.ClusterRole](t, objects, "nodens-dns-policy")
	want := []rbacv1.PolicyRule{{APIGroups: []string{"nodens.dev"}, Resources: []string{"dnspolicies"}, Verbs: []string{"list", "watch"}}}
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	compareObjects(t, loadManifest(t), slices.DeleteFunc(objects, func(o runtime.Object) bool {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			return o.Name == "nodens-dns-policy"
		case *rbacv1.ClusterRoleBinding:
			return o.Name == "nodens-dns-policy"
		case *unstructured.Unstructured:
			return o.GetName() == "dnspolicies.nodens.dev"
		}
		return false
	}))
}

// TestChartDNSPolicy: the rights are for the account of the release, and the flag is the value.
func TestChartDNSPolicy(t *testing.T) {
	objects := renderChart(t, "{dnsPolicies: {mode: closed}, serviceAccount: {name: dns}}")
	binding, _ := findObject[*rbacv1.ClusterRoleBinding](t, objects, "nodens-dns-policy")
	if s := binding.Subjects[0]; s.Name != "dns" || s.Namespace != "kube-system" {
		t.Errorf("the rights are for %v", s)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	if !slices.Contains(set.Spec.Template.Spec.Containers[0].Args, "-dns-policies=closed") {
		t.Errorf("arguments %q", set.Spec.Template.Spec.Containers[0].Args)
	}
	objects = renderChart(t, "{dnsPolicies: {mode: open}, rbac: {create: false}}")
	if slices.ContainsFunc(objects, func(o runtime.Object) bool { _, is := o.(*rbacv1.ClusterRole); return is }) {
		t.Error("a ClusterRole without rbac.create")
	}
	findObject[*unstructured.Unstructured](t, objects, "dnspolicies.nodens.dev")
}
