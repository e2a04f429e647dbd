// This test uses startAgent, which is not exported.

package app

import (
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestReloadGoesOn: a view of other options goes on from the one before it, which has not been saved since its start.
func TestReloadGoesOn(t *testing.T) {
	x := startUnderChange(t)
	save := "save " + filepath.Join(t.TempDir(), "view")
	lists := func() int { return x.api.Lists("services") }
	x.Reload(x.corefile(save, ""), saysInForce)
	x.Await("the view", func() bool { return agenttest.Metric(t, x.http, "nodens_kubernetes_synced") == "1" })
	first := lists()
	x.Reload(x.corefile(save+"\n  scope cluster", ""), saysInForce)
	x.Await("the watch", func() bool { return x.api.Requests("/services?", "resourceVersion=some") > 0 })
	if n := lists(); n != first {
		t.Errorf("%d lists, want %d as before", n, first)
	}
	x.expect("after the reload", "0")
}
