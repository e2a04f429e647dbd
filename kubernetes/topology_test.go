package kubernetes

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// openPlaced is openText for the node n0 in the zone east.
func openPlaced(t testing.TB, cfg *config.Kubernetes, yaml string) *View {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Manifests = []string{file}
	v, err := Open(cfg, Options{
		Now: testClock, ServerAddrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")},
		Node: "n0", Zone: "east",
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
