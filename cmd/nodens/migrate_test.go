package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
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
			args := []string{"-f", file}
			for _, step := range []string{"first", "second", "third"} {
				manifest, notes := migrated(t, args...)
				next := filepath.Join(t.TempDir(), step+".yaml")
				agenttest.WriteFile(t, next, manifest)
				args = append(args, "-f", next)
				if step == "third" { // has nothing left to change
					if strings.Contains(notes, "changed: DaemonSet") {
						t.Errorf("the third step changes the DaemonSet:\n%s", notes)
					}
					continue
				}
				written(t, "testdata/migrate/"+name+"."+step, manifest)
				written(t, "testdata/migrate/"+name+"."+step+".notes", notes)
			}
		})
	}
}

// migrated returns what `nodens migrate` prints: to standard output, and to standard error.
func migrated(t *testing.T, args ...string) (manifest, notes string) {
	t.Helper()
	code, manifest, notes := outcome(t, append([]string{"migrate", "-image", "example.test/nodens:1"}, args...)...)
	if code != 0 {
		t.Fatalf("migrate %q ends with %d:\n%s", args, code, notes)
	}
	return manifest, notes
}

// migratedText is migrated for the text of objects.
func migratedText(t *testing.T, text string, args ...string) (manifest, notes string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "in.yaml")
	agenttest.WriteFile(t, file, text)
	return migrated(t, append(args, "-f", file)...)
}

// written holds got against the file.
func written(t *testing.T, file, got string) {
	t.Helper()
	want, err := os.ReadFile(file)
	check.NoError(t, err)
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-written down +got):\n%s", file, d)
	}
}
