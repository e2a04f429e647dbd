package daemonset

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestOptIn: the overlay is the base with the policy and its binding. What the policy does is tested in test/install.
func TestOptIn(t *testing.T) {
	objects := renderOverlay(t, "opt-in")
	checkAccepted(t, objects)
	policy, _ := findObject[*admissionregistrationv1.MutatingAdmissionPolicy](t, objects, "")
	binding, _ := findObject[*admissionregistrationv1.MutatingAdmissionPolicyBinding](t, objects, "")
	if d := cmp.Diff(admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name}, binding.Spec); d != "" {
		t.Errorf("the binding (-want +got):\n%s", d)
	}
	// Pods must not fail because of it.
	if f := policy.Spec.FailurePolicy; f == nil || *f != admissionregistrationv1.Ignore {
		t.Errorf("failurePolicy %v, want Ignore", f)
	}
	compareObjects(t, loadManifest(t), slices.DeleteFunc(objects, func(o runtime.Object) bool { return o == runtime.Object(policy) || o == runtime.Object(binding) }))
}

// TestOptInPatch: the patch in the guide changes the variables that it is about.
func TestOptInPatch(t *testing.T) {
	_, example, _ := strings.Cut(string(readFile(t, "../docs/how-to/opt-in.md")), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "nodens/daemonset"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	// The example names a release on GitHub, and the cluster domain that is the default.
	example = strings.NewReplacer("https://github.com/nodens-dns/nodens//daemonset/", "../nodens/daemonset/", "?ref=v0.1.0", "", "'cluster.local'", "'k8s.example'").Replace(example)
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine/kustomization.yaml"), []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := runTool(t, "kubectl", "kustomize", filepath.Join(dir, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	policy, _ := findObject[*admissionregistrationv1.MutatingAdmissionPolicy](t, objects, "")
	want := []admissionregistrationv1.Variable{
		{Name: "nameservers", Expression: "['169.254.20.10', '10.96.0.10']"}, {Name: "clusterDomain", Expression: "'k8s.example'"},
		{Name: "ndots", Expression: "'2'"}, {Name: "nodeSearches", Expression: "['corp.example']"},
	}
	if d := cmp.Diff(want, policy.Spec.Variables[:len(want)]); d != "" {
		t.Errorf("variables (-want +got):\n%s", d)
	}
}

// TestChartOptIn: the policy's variables have the chart's values, and the chart refuses releases of Kubernetes without the policy's API.
func TestChartOptIn(t *testing.T) {
	const values = "{optIn: {enabled: true, clusterDns: 'fd00::a', ndots: 2, searches: [corp.example, b.example]}, config: {dnsDomain: k8s.example., localDns: '169.254.1.1,fd00::1'}}"
	policy, _ := findObject[*admissionregistrationv1.MutatingAdmissionPolicy](t, renderChart(t, values), "")
	got := make(map[string]string)
	for _, v := range policy.Spec.Variables[:4] {
		got[v.Name] = v.Expression
	}
	want := map[string]string{
		"nameservers": "['169.254.1.1', 'fd00::a']", "clusterDomain": "'k8s.example'", "ndots": "'2'", "nodeSearches": "['corp.example', 'b.example']",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("variables (-want +got):\n%s", d)
	}
	_, err := runTool(t, "helm", "template", "any", "chart", "--namespace", "kube-system", "--kube-version", "1.35.4", "--set", "optIn.enabled=true,optIn.clusterDns=10.96.0.10")
	if err == nil || !strings.Contains(err.Error(), "1.36") {
		t.Errorf("on Kubernetes 1.35: %v, want an error that names 1.36", err)
	}
}
