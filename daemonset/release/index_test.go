package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/peer"
)

// checkRepository has helm find and pull the chart in a web server with the release's files.
func checkRepository(t *testing.T, dir string) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	helm, home := peer.Build(t, "helm"), t.TempDir()
	run := func(args ...string) []byte {
		t.Helper()
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), helm, args...)
		cmd.Dir, cmd.Stderr = home, &stderr
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm %v: %v: %s", args, err, &stderr)
		}
		return out
	}
	run("repo", "add", "nodens", server.URL)
	var found []map[string]string
	if err := yaml.Unmarshal(run("search", "repo", "nodens/", "--output", "json"), &found); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		delete(f, "description")
	}
	if diff := cmp.Diff([]map[string]string{{"name": "nodens/nodens", "version": "0.1.0", "app_version": "0.1.0"}}, found); diff != "" {
		t.Errorf("helm finds (-want +got):\n%s", diff)
	}
	run("pull", "nodens/nodens", "--version", "0.1.0")
	if name := chartName("0.1.0"); !bytes.Equal(content(t, filepath.Join(home, name)), content(t, filepath.Join(dir, name))) {
		t.Error("the chart that helm pulls is not that of the release")
	}
}
