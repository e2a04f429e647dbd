package daemonset

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestNodeCondition: the overlay adds the flag, rights and the policy, and nothing else. What the policy allows is tested in test/install.
func TestNodeCondition(t *testing.T) {
	objects := renderOverlay(t, "node-condition")
	checkAccepted(t, objects)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	c := &set.Spec.Template.Spec.Containers[0]
	if last := len(c.Args) - 1; c.Args[last] != "-node-condition" {
		t.Errorf("arguments %q", c.Args)
	} else {
		c.Args = c.Args[:last]
	}
	compareObjects(t, loadManifest(t), slices.DeleteFunc(objects, func(o runtime.Object) bool {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			return o.Name == "nodens-node-condition"
		case *rbacv1.ClusterRoleBinding:
			return o.Name == "nodens-node-condition"
		case *rbacv1.Role, *rbacv1.RoleBinding, *admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			return true
		}
		return false
	}))
}

// TestNodePolicyFields: the policy names every field of a Node that the agent may not change.
func TestNodePolicyFields(t *testing.T) {
	policy, _ := findObject[*admissionregistrationv1.ValidatingAdmissionPolicy](t, renderOverlay(t, "node-condition"), "")
	var text strings.Builder
	for _, v := range policy.Spec.Validations {
		text.WriteString(v.Expression)
	}
	for part, fields := range map[string]reflect.Type{"spec": reflect.TypeFor[corev1.NodeSpec](), "status": reflect.TypeFor[corev1.NodeStatus]()} {
		for field := range fields.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "taints" || name == "conditions" {
				continue
			}
			if want := "object." + part + ".?" + name + " == oldObject." + part + ".?" + name; !strings.Contains(text.String(), want) {
				t.Errorf("the policy lacks %s", want)
			}
		}
	}
}

// TestChartNodeCondition: rights and policy are for the account of the release.
func TestChartNodeCondition(t *testing.T) {
	const values = "{nodeCondition: {enabled: true}, serviceAccount: {name: dns}}"
	objects := renderChart(t, values)
	policy, _ := findObject[*admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "")
	if got, want := policy.Spec.MatchConditions[0].Expression, "request.userInfo.username == 'system:serviceaccount:kube-system:dns'"; got != want {
		t.Errorf("the policy is for %s, want %s", got, want)
	}
	binding, _ := findObject[*rbacv1.RoleBinding](t, objects, "")
	if s := binding.Subjects[0]; s.Name != "dns" || s.Namespace != "kube-system" {
		t.Errorf("Events may be written by %v", s)
	}
	objects = renderChart(t, "{nodeCondition: {enabled: true}, rbac: {create: false}}")
	findObject[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects, "")
	if slices.ContainsFunc(objects, func(o runtime.Object) bool { _, is := o.(*rbacv1.Role); return is }) {
		t.Error("a Role without rbac.create")
	}
}
