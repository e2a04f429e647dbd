package daemonset

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// update makes tests write the files that they compare.
var update = flag.Bool("update", false, "write generated files")

// compareGenerated compares a generated file with its content, or writes it with -update.
// test is the name of the test.
func compareGenerated(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (%v): go test ./daemonset -run '^%s$' -update", file, err, t.Name())
	}
}

// TestChartFiles: the chart's files are copies of others in daemonset. Helm prints a
// warning for each symbolic link, so there is none in the chart.
func TestChartFiles(t *testing.T) {
	for _, file := range []string{"monitoring/dashboard.json", "monitoring/podmonitor.yaml", "monitoring/rules.yaml", "cleanup.yaml", "components/opt-in/opt-in.yaml", "components/node-condition/node-condition.yaml", "components/dns-policy/dns-policy.yaml"} {
		compareGenerated(t, filepath.Join("chart", "files", filepath.Base(file)), readFile(t, file))
	}
	err := filepath.WalkDir("chart", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !entry.Type().IsRegular() {
			t.Errorf("%s is not a regular file", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
