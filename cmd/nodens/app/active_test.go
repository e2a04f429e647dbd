// These tests use agent, opts and writePidfile, which are not exported.

package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestPidfileThroughLink: the process id is not written to a file that another user has
// led -pidfile to, and the error says which setting is at fault.
func TestPidfileThroughLink(t *testing.T) {
	dir := t.TempDir()
	kept, path := filepath.Join(dir, "kept"), filepath.Join(dir, "pid")
	agenttest.WriteFile(t, kept, "as it was")
	check.NoError(t, os.Symlink(kept, path))
	a := &agent{opts: &options.Agent{Pidfile: path}}
	err := a.writePidfile()
	if err == nil || !strings.Contains(err.Error(), "-pidfile "+path) || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v, want one that names -pidfile and the link", err)
	}
	if text, err := os.ReadFile(kept); string(text) != "as it was" || err != nil {
		t.Errorf("the file at the link's end holds %q, %v", text, err)
	}
}
