package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestHandoverDirOfAnother: an agent does not start in a directory whose owner could take
// its sockets, and says what to do.
func TestHandoverDirOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	p := peer.Ports(t, 3)
	a := newAgentProcess(t, withCache(p[0], p[1], p[2]), nil, "-handover-dir", dir)
	a.awaitExit(1)
	if log := a.log.String(); !strings.Contains(log, "-handover-dir "+dir) || !strings.Contains(log, "chown 0") {
		t.Errorf("the log does not name the setting and the remedy:\n%s", log)
	}
	if list, err := os.ReadDir(dir); len(list) > 0 || err != nil {
		t.Errorf("the directory holds %v, %v", list, err)
	}
}

// TestPidfileThroughLink: the process id is not written to a file that another user has
// led -pidfile to, and the error says which setting is at fault.
func TestPidfileThroughLink(t *testing.T) {
	dir := t.TempDir()
	kept, path := filepath.Join(dir, "kept"), filepath.Join(dir, "pid")
	write(t, kept, "as it was")
	if err := os.Symlink(kept, path); err != nil {
		t.Fatal(err)
	}
	a := &agent{opts: &options{pidfile: path}}
	err := a.writePidfile()
	if err == nil || !strings.Contains(err.Error(), "-pidfile "+path) || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v, want one that names -pidfile and the link", err)
	}
	if text, err := os.ReadFile(kept); string(text) != "as it was" || err != nil {
		t.Errorf("the file at the link's end holds %q, %v", text, err)
	}
}
