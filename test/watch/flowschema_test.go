package watch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// testFlowSchema holds that the API server takes the FlowSchema that the documentation advises, and that it comes before the one that
// would match otherwise.
func testFlowSchema(t *testing.T, client kubernetes.Interface) {
	root, err := peer.Root()
	check.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs", "explanation", "cluster-scope.md"))
	check.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	manifest, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("the page has no manifest")
	}
	var schema flowcontrolv1.FlowSchema
	check.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &schema))
	made, err := client.FlowcontrolV1().FlowSchemas().Create(t.Context(), &schema, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: "Strict"})
	check.NoError(t, err)
	if builtIn := int32(900); made.Spec.MatchingPrecedence >= builtIn {
		t.Errorf("its precedence is %d, and that of kube-system-service-accounts %d", made.Spec.MatchingPrecedence, builtIn)
	}
}
