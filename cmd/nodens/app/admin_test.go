// These tests use close, openAdmin and configState, which are not exported.

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// over asks at an admin socket.
func over(t *testing.T, socket, method, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: agenttest.Timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://nodens"+path, nil)
	check.NoError(t, err)
	resp, err := client.Do(req)
	check.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check.NoError(t, err)
	return resp.StatusCode, string(text)
}

// shown returns what an admin socket shows at a path.
func shown[T any](t *testing.T, socket, path string) (reply T) {
	t.Helper()
	code, text := over(t, socket, "GET", path)
	if err := json.Unmarshal([]byte(text), &reply); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %v\n%s", path, code, err, text)
	}
	return reply
}

// TestAdminSocket: who can connect, what it says, and what it refuses.
func TestAdminSocket(t *testing.T) {
	p := peer.Ports(t, 1)
	dir := t.TempDir()
	socket := filepath.Join(dir, "a.sock")
	r := startAgent(t, fmt.Sprintf("test:%d example.org:%d {\n bind 127.0.0.1\n cache\n forward example.org 192.0.2.1\n forward . 192.0.2.2\n}\n", p[0], p[0]), func(o *options.Agent) { o.AdminSocket, o.NodeName = socket, "node-1" })
	info, err := os.Lstat(socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("the socket's mode is %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
	upstreams := shown[report.Upstreams](t, socket, "/upstreams")
	if len(upstreams.Forwards) != 2 {
		t.Fatalf("/upstreams: %+v", upstreams)
	}
	if h := upstreams.Header; h.SchemaVersion != 1 || h.Node != "node-1" || len(h.Instance) != 16 {
		t.Errorf("/upstreams begins with %+v", h)
	}
	if f := upstreams.Forwards[0]; f.From != "example.org." || len(f.Zones) != 2 || len(f.Upstreams) != 1 || f.Upstreams[0].To != "192.0.2.1:53" || f.Upstreams[0].Down {
		t.Errorf("/upstreams: %+v", f)
	}
	if cfg := shown[configState](t, socket, "/config"); cfg.Path != r.Conf || len(cfg.Hash) != 128 || cfg.Refused || len(cfg.Files) != 1 {
		t.Errorf("/config: %+v", cfg)
	}
	for _, c := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/cache/flush?name=a", http.StatusMethodNotAllowed, ""},
		{"POST", "/config", http.StatusMethodNotAllowed, ""},
		{"GET", "/", http.StatusNotFound, ""},
		{"POST", "/cache/flush", http.StatusBadRequest, "name is missing"},
		{"POST", "/cache/flush?name=a..b", http.StatusBadRequest, "a..b"},
		{"POST", "/cache/flush?name=a&subtree=maybe", http.StatusBadRequest, "give true or false"},
	} {
		if code, text := over(t, socket, c.method, c.path); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, code, text, c.code, c.want)
		}
	}
	r.Stop()
	r.Await("the socket to go", func() bool { _, err := os.Lstat(socket); return os.IsNotExist(err) })
}

// TestAdminSocketPlace: a socket gives way to the next agent's, whose own then stays;
// what is no socket is left alone.
func TestAdminSocketPlace(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	first, err := l.openAdmin(path)
	check.NoError(t, err)
	second, err := l.openAdmin(path)
	check.NoError(t, err)
	first.close()
	if code, _ := over(t, path, "GET", "/config"); code != http.StatusOK {
		t.Errorf("after the first agent's end: %d", code)
	}
	second.close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	file := filepath.Join(dir, "file")
	agenttest.WriteFile(t, file, "text")
	for at, want := range map[string]string{
		file:                               "not a socket",
		filepath.Join(dir, "none", "a"):    "can be written to",
		filepath.Join(dir, long(dir), "a"): "too long",
	} {
		_ = os.Mkdir(filepath.Join(dir, long(dir)), 0o700)
		s, err := l.openAdmin(at)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-admin-socket "+at) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
		s.close()
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "text" {
		t.Errorf("the file became %q, %v", text, err)
	}
}

// long is a folder's name in dir that leaves no place for a socket's.
func long(dir string) string { return strings.Repeat("x", max(1, 100-len(dir))) }
