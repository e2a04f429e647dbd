package daemonset

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// addOn is what is read of an object in docs/how-to/add-ons.md.
type addOn struct {
	Kind string
	Spec struct {
		ValuesContent string         // HelmChart
		Values        map[string]any // HelmRelease
		Source        struct {       // Application
			Helm struct{ ValuesObject map[string]any }
		}
	}
}

// TestAddOns: the page's YAML can be read, and the chart accepts the values in it.
func TestAddOns(t *testing.T) {
	text, err := os.ReadFile("../docs/how-to/add-ons.md")
	if err != nil {
		t.Fatal(err)
	}
	charts := 0
	for _, fence := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(string(text), -1) {
		for document := range strings.SplitSeq(fence[1], "\n---\n") {
			var a addOn
			if err := yaml.Unmarshal([]byte(document), &a); err != nil {
				t.Errorf("%v in\n%s", err, document)
				continue
			}
			var values any
			switch a.Kind {
			case "HelmChart":
				if err := yaml.Unmarshal([]byte(a.Spec.ValuesContent), &values); err != nil {
					t.Error(err)
				}
			case "HelmRelease":
				values = a.Spec.Values
			case "Application":
				values = a.Spec.Source.Helm.ValuesObject
			default:
				continue
			}
			charts++
			content, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, content, 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := runTool(t, "helm", "template", "any", "chart", "--namespace", "kube-system", "--kube-version", "1.36.0", "--values", file); err != nil {
				t.Errorf("%s: %v\n%s", a.Kind, err, out)
			}
		}
	}
	if charts != 3 {
		t.Errorf("%d objects with values of the chart, want three", charts)
	}
}
