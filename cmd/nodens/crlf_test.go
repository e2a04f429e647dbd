package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// withCRLF copies the file with the line ends of Windows to a new directory, under its name.
func withCRLF(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	check.NoError(t, err)
	path := filepath.Join(t.TempDir(), filepath.Base(file))
	agenttest.WriteFile(t, path, strings.ReplaceAll(string(text), "\n", "\r\n"))
	return path
}

// TestCRLF: Corefiles and manifests that an editor on Windows has written mean the same.
func TestCRLF(t *testing.T) {
	t.Setenv("NODENS_SAMPLE", "sample/manifests")
	t.Setenv("KUBE_DNS_SERVICE_HOST", "10.96.0.10")
	// The first line of check's output has the path, and a hash of the text; the list of files has both, too.
	firstLine := regexp.MustCompile(`^.*: `)
	hash := regexp.MustCompile(`hash [0-9a-f]{12}|[0-9a-f]{64}  \S*Corefile\S*`)
	for _, tt := range []struct {
		name string
		file string
		args []string // the file follows
	}{
		{"check", "sample/Corefile", []string{"check", "--conf"}},
		{"check a base Corefile", "../../daemonset/testdata/ipvs/Corefile.base", []string{"check", "--localip", "169.254.20.10", "--conf"}},
		{"migrate", "../../test/e2e/testdata/nodelocaldns.yaml", []string{"migrate", "--image", "example.test/nodens:1", "-f"}},
		{"migrate a chart's objects", "testdata/migrate/chart.yaml", []string{"migrate", "--image", "example.test/nodens:1", "-f"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var outputs []string
			for _, file := range []string{tt.file, withCRLF(t, tt.file)} {
				code, stdout, stderr := outcome(t, append(tt.args, file)...)
				if code != exitOK {
					t.Fatalf("%s ends with %d:\n%s", file, code, stderr)
				}
				stdout = hash.ReplaceAllString(firstLine.ReplaceAllString(stdout, ""), "")
				outputs = append(outputs, stdout, strings.ReplaceAll(stderr, filepath.Base(file), ""))
			}
			if d := cmp.Diff(outputs[:2], outputs[2:]); d != "" {
				t.Errorf("(-LF +CRLF)\n%s", d)
			}
		})
	}
}

// TestMigrateCRLFCorefile: a Corefile whose lines end in CRLF in the ConfigMap, as in one that
// was made from a file on Windows, is printed like any other.
func TestMigrateCRLFCorefile(t *testing.T) {
	text, err := os.ReadFile("../../test/e2e/testdata/nodelocaldns.yaml")
	check.NoError(t, err)
	var plain, crlf strings.Builder
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var object map[string]any
		check.NoError(t, yaml.Unmarshal([]byte(doc), &object))
		plain.WriteString("---\n" + marshal(t, object))
		if data, ok := object["data"].(map[string]any); ok {
			data["Corefile"] = strings.ReplaceAll(data["Corefile"].(string), "\n", "\r\n")
		}
		crlf.WriteString("---\n" + marshal(t, object))
	}
	if !strings.Contains(crlf.String(), `\r\n`) {
		t.Fatal("the ConfigMap has no CRLF")
	}
	var outputs []string
	for _, objects := range []string{plain.String(), crlf.String()} {
		dir := t.TempDir()
		old, first := filepath.Join(dir, "old.yaml"), filepath.Join(dir, "first.yaml")
		agenttest.WriteFile(t, old, objects)
		_, stdout, _ := outcome(t, "migrate", "--image", "example.test/nodens:1", "-f", old)
		agenttest.WriteFile(t, first, stdout)
		code, stdout, stderr := outcome(t, "migrate", "-f", old, "-f", first)
		if code != exitOK {
			t.Fatalf("the second step ends with %d:\n%s", code, stderr)
		}
		outputs = append(outputs, stdout)
	}
	if d := cmp.Diff(strings.Split(outputs[0], "\n"), strings.Split(outputs[1], "\n")); d != "" {
		t.Errorf("(-LF +CRLF)\n%s", d)
	}
}

func marshal(t *testing.T, object map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	check.NoError(t, err)
	return string(text)
}
