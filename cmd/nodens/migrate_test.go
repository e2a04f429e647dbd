package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestMigrate holds both steps against what is written down: of NodeLocal DNSCache as the
// Kubernetes project deploys it, and as others do. Each step reads what the one before
// printed. `nodens migrate` makes the files; look at every line that changes.
func TestMigrate(t *testing.T) {
	for _, file := range []string{
		"../../test/e2e/testdata/nodelocaldns.yaml",
		"testdata/migrate/chart.yaml",
		"testdata/migrate/kubespray.yaml",
		"testdata/migrate/pod-network.yaml",
	} {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			args := []string{"migrate", "-image", "example.test/nodens:1", "-f", file}
			for _, step := range []string{"first", "second", "third"} {
				var stdout, stderr bytes.Buffer
				if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
					t.Fatalf("the %s step ends with %d:\n%s", step, code, &stderr)
				}
				next := filepath.Join(t.TempDir(), step+".yaml")
				agenttest.WriteFile(t, next, stdout.String())
				args = append(args, "-f", next)
				if step == "third" { // has nothing left to change
					if strings.Contains(stderr.String(), "changed: DaemonSet") {
						t.Errorf("the third step changes the DaemonSet:\n%s", &stderr)
					}
					continue
				}
				written(t, "testdata/migrate/"+name+"."+step, stdout.String())
				written(t, "testdata/migrate/"+name+"."+step+".notes", stderr.String())
			}
		})
	}
}

// written holds got against the file.
func written(t *testing.T, file, got string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-written down +got):\n%s", file, d)
	}
}
