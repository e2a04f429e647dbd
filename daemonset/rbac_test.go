package daemonset

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// podSpec returns the pod template of the DaemonSet and its only container.
func podSpec(t *testing.T) (*corev1.PodSpec, *corev1.Container) {
	t.Helper()
	set, _ := findObject[*appsv1.DaemonSet](t, loadManifest(t), "")
	spec := &set.Spec.Template.Spec
	if n := len(spec.Containers) + len(spec.InitContainers); n != 1 {
		t.Fatalf("the pod has %d containers, want 1", n)
	}
	return spec, &spec.Containers[0]
}

func TestRole(t *testing.T) {
	objects := loadManifest(t)
	role, _ := findObject[*rbacv1.ClusterRole](t, objects, "")
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	if role.AggregationRule != nil {
		t.Error("the role aggregates other roles")
	}

	binding, _ := findObject[*rbacv1.ClusterRoleBinding](t, objects, "")
	account, _ := findObject[*corev1.ServiceAccount](t, objects, "")
	ref := rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: role.Name}
	if d := cmp.Diff(ref, binding.RoleRef); d != "" {
		t.Errorf("the binding's role (-want +got):\n%s", d)
	}
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
	if d := cmp.Diff(subjects, binding.Subjects); d != "" {
		t.Errorf("the binding's subjects (-want +got):\n%s", d)
	}
	spec, _ := podSpec(t)
	if spec.ServiceAccountName != account.Name {
		t.Errorf("the pod's account is %q, want %q", spec.ServiceAccountName, account.Name)
	}
}

// TestPluginRole: the optional Role for users of kubectl nodens has the rights to list pods and to exec in
// them, in the agents' namespace and nowhere else, and it is part of nothing else.
func TestPluginRole(t *testing.T) {
	objects, err := decodeObjects(readFile(t, "kubectl-nodens.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 2 {
		t.Fatalf("%d objects, want a Role and its binding", len(objects))
	}
	role, _ := findObject[*rbacv1.Role](t, objects, "")
	binding, _ := findObject[*rbacv1.RoleBinding](t, objects, "")
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create", "get"}},
	}
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	ref := rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role.Name}
	if d := cmp.Diff(ref, binding.RoleRef); d != "" {
		t.Errorf("the binding's role (-want +got):\n%s", d)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, loadManifest(t), "")
	if role.Namespace != set.Namespace || binding.Namespace != set.Namespace {
		t.Errorf("the namespaces are %q and %q, want %q", role.Namespace, binding.Namespace, set.Namespace)
	}
	for _, s := range binding.Subjects {
		if s.Kind != "Group" || strings.HasPrefix(s.Name, "system:") {
			t.Errorf("the subject %s %s: want a group of users", s.Kind, s.Name)
		}
	}
}

// TestMulticlusterRule: the rule for ServiceImports is commented out, because most clusters
// don't have them. It must be valid without the comment marks.
func TestMulticlusterRule(t *testing.T) {
	text, err := os.ReadFile("base/nodens.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "  # - apiGroups: [multicluster.x-k8s.io]\n")
	if !ok {
		t.Fatal("nodens.yaml has no rule for ServiceImports")
	}
	rule := "  - apiGroups: [multicluster.x-k8s.io]\n"
	for line := range strings.Lines(rest) {
		inner, commented := strings.CutPrefix(line, "  # ")
		if !commented {
			break
		}
		rule += "  " + inner
	}
	objects, err := decodeObjects([]byte("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: nodens\nrules:\n" + rule))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, rule)
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"multicluster.x-k8s.io"}, Resources: []string{"serviceimports"}, Verbs: []string{"list", "watch"}},
	}
	role, _ := findObject[*rbacv1.ClusterRole](t, objects, "")
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
}

func TestSecurityContext(t *testing.T) {
	spec, c := podSpec(t)
	var root int64
	yes, no := true, false
	want := &corev1.SecurityContext{
		RunAsUser: &root,
		// Not left out: it would stay true in an object that was not made by kubectl apply.
		Privileged:               &no,
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"},
			Add:  []corev1.Capability{"NET_ADMIN", "NET_BIND_SERVICE"},
		},
	}
	if d := cmp.Diff(want, c.SecurityContext); d != "" {
		t.Errorf("the container's (-want +got):\n%s", d)
	}
	wantPod := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if d := cmp.Diff(wantPod, spec.SecurityContext); d != "" {
		t.Errorf("the pod's (-want +got):\n%s", d)
	}
	if spec.HostPID || spec.HostIPC {
		t.Error("the pod shares the node's processes or IPC")
	}
}

// TestNoPorts: container ports of a hostNetwork pod are host ports, which prevent a second pod
// on the node.
func TestNoPorts(t *testing.T) {
	_, c := podSpec(t)
	if len(c.Ports) != 0 {
		t.Errorf("ports %v are declared, want none", c.Ports)
	}
}
