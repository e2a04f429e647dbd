package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// hostRoot is a directory with a node's resolv.conf.
func hostRoot(t *testing.T, text string) (root, path string) {
	t.Helper()
	root = t.TempDir()
	path = filepath.Join(root, "etc", "resolv.conf")
	check.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	agenttest.WriteFile(t, path, text)
	return root, path
}

// TestHost: install, status and remove, as text and JSON, with their exit codes.
func TestHost(t *testing.T) {
	const original = "search lan\nnameserver 192.0.2.1\n"
	root, path := hostRoot(t, original)
	flags := []string{"--host-listen", "169.254.20.11", "--host-root", root}
	host := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, err strings.Builder
		if code := run(t.Context(), append([]string{"host"}, args...), &out, &err); code != want {
			t.Errorf("host %q: exit code %d, want %d\n%s%s", args, code, want, out.String(), err.String())
		}
		return out.String(), err.String()
	}
	out, stderr := host(exitError, append([]string{"status"}, flags...)...)
	check.Equal(t, "look-ups  file, /etc/resolv.conf\nagent     not first\nservers   192.0.2.1\n", out, "status before")
	check.Equal(t, "nodens: the node's look-ups do not go to the agent first\n", stderr, "error before")

	out, _ = host(exitOK, append([]string{"install", "-o", "json"}, flags...)...)
	var l report.Lookups
	check.NoError(t, json.Unmarshal([]byte(out), &l))
	if !l.AgentFirst || l.Manager != "file" || len(l.Changes) != 1 || l.Changes[0].Path != "/etc/resolv.conf" {
		t.Errorf("install: %s", out)
	}
	out, _ = host(exitOK, append([]string{"status"}, flags...)...)
	check.Equal(t, "look-ups  file, /etc/resolv.conf\nagent     first\nservers   192.0.2.1\n", out, "status")

	out, _ = host(exitOK, "remove", "--host-root", root)
	if !strings.Contains(out, "write /etc/resolv.conf\n    search lan\n    nameserver 192.0.2.1\n") {
		t.Errorf("remove:\n%s", out)
	}
	text, err := os.ReadFile(path)
	check.NoError(t, err)
	check.Equal(t, original, string(text), "the file")
	_, stderr = host(exitError, "install", "--host-root", root)
	if !strings.Contains(stderr, "--host-listen") {
		t.Error(stderr)
	}
	_, stderr = host(exitUsage)
	if !strings.Contains(stderr, "install, remove and status") {
		t.Error(stderr)
	}
}

// TestPlanHost: the plan has the address, the rules and what would be written, and writes nothing.
func TestPlanHost(t *testing.T) {
	root, path := hostRoot(t, "nameserver 192.0.2.1\n")
	var out, stderr strings.Builder
	args := []string{"plan", "--host-listen=169.254.20.11", "--host-resolver=auto", "--host-root=" + root, "--localip=169.254.20.10", "--netfilter=nftables", "--external-interfaces=none"}
	if code := run(t.Context(), args, &out, &stderr); code != exitOK {
		t.Fatal(stderr.String())
	}
	for _, want := range []string{"address   169.254.20.11/32\n", "look-ups  file, /etc/resolv.conf\n", "write /etc/resolv.conf\n    # nodens: ", "\n    nameserver 169.254.20.11\n    nameserver 192.0.2.1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(path)
	check.NoError(t, err)
	check.Equal(t, "nameserver 192.0.2.1\n", string(text), "the file")
}

// TestHostFlags: the errors name the flag.
func TestHostFlags(t *testing.T) {
	root, _ := hostRoot(t, "nameserver 192.0.2.1\n")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--host-listen=here"}, `"here" is no IP address`},
		{[]string{"--host-listen=0.0.0.0"}, "--host-listen"},
		{[]string{"--host-listen=169.254.20.11,169.254.20.12,169.254.20.13"}, "3 addresses; give 2 at most"},
		{[]string{"--host-listen=169.254.20.10"}, "--host-listen: 169.254.20.10 is given twice"},
		{[]string{"--host-resolver=auto"}, "--host-resolver: there is no address"},
		{[]string{"--host-resolver=yes", "--host-listen=169.254.20.11"}, "--host-resolver"},
		{[]string{"--host-listen=169.254.20.11", "--host-resolver=auto", "--dns.port=5353"}, "--host-resolver: a resolv.conf names no port"},
	} {
		var out, stderr strings.Builder
		args := append([]string{"plan", "--localip=169.254.20.10", "--netfilter=nftables", "--external-interfaces=none", "--host-root=" + root}, tt.args...)
		if code := run(t.Context(), args, &out, &stderr); code == exitOK || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: %s, want %s", tt.args, stderr.String(), tt.want)
		}
	}
}

// TestCheckHost: the default block is shown with the others.
func TestCheckHost(t *testing.T) {
	root, _ := hostRoot(t, "nameserver 192.0.2.1\n")
	conf := filepath.Join(t.TempDir(), "Corefile")
	agenttest.WriteFile(t, conf, ". {\n bind 169.254.20.10\n forward . 192.0.2.9\n}\n")
	var out, stderr strings.Builder
	args := []string{"check", "--conf", conf, "--localip=169.254.20.10", "--host-listen=169.254.20.11", "--host-root=" + root}
	if code := run(t.Context(), args, &out, &stderr); code != exitOK {
		t.Fatal(stderr.String())
	}
	if text := out.String(); !strings.Contains(text, "--host-listen") || !strings.Contains(text, "169.254.20.11:53") || !strings.Contains(text, "192.0.2.1") {
		t.Errorf("got\n%s", text)
	}
}
