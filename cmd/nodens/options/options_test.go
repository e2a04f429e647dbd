package options_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
)

// TestLoadFirst: broken keys of the kube-dns ConfigMap don't keep the agent from starting, but from reloading.
func TestLoadFirst(t *testing.T) {
	for _, tt := range []struct {
		name, stubs, upstreams, corefile string
		blocks                           int // 0: an error
		ignored                          string
	}{
		{"right", `{"a.test": ["192.0.2.1"]}`, `["192.0.2.2"]`, "whoami", 2, ""},
		{"no JSON", `{"a.test": [`, `["192.0.2.2"]`, "whoami", 1, "stubDomains:1"},
		{"no server", `{"a.test": []}`, "", "whoami", 1, "no server"},
		{"upstreams", `{"a.test": ["192.0.2.1"]}`, `["ns..test"]`, "whoami", 2, "upstreamNameservers"},
		{"both", `[]`, `{}`, "whoami", 1, "upstreamNameservers"},
		{"a fault of the Corefile", `{"a.test": ["192.0.2.1"]}`, "", "whoamy", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"Corefile": ". {\n" + tt.corefile + "\n}\n", "stubDomains": tt.stubs, "upstreamNameservers": tt.upstreams} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			o := options.Default()
			o.Conf, o.KubeDNSDir = filepath.Join(dir, "Corefile"), dir
			cfg, ignored, err := o.LoadFirst()
			if err != nil || cfg == nil {
				if tt.blocks > 0 {
					t.Fatal(err)
				}
				return
			}
			if len(cfg.Blocks) != tt.blocks {
				t.Errorf("%d blocks, want %d", len(cfg.Blocks), tt.blocks)
			}
			if (ignored == nil) != (tt.ignored == "") || ignored != nil && !strings.Contains(ignored.Error(), tt.ignored) {
				t.Errorf("ignored: %v, want %q", ignored, tt.ignored)
			}
			if _, err := o.LoadConfig(); (err == nil) != (ignored == nil) {
				t.Errorf("a reload: %v", err)
			}
		})
	}
}
