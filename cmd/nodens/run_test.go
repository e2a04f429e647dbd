//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestStartFailures: what keeps the agent from starting says what to do, and
// leaves no socket behind.
func TestStartFailures(t *testing.T) {
	p := peer.Ports(t, 2)
	taken, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p[0]))
	check.NoError(t, err)
	defer taken.Close()
	conf := filepath.Join(t.TempDir(), "Corefile")
	for _, c := range []struct{ name, corefile, want string }{
		{"dns port in use", fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n}\n", p[0]), "-dns.port"},
		{"unknown directive", ".:53 {\n forwrad . 127.0.0.1\n}\n", `:2: unknown directive \"forwrad\" (did you mean \"forward\"?)`},
		{"no API server", fmt.Sprintf(".:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n kubeconfig /nonexistent\n }\n}\n", p[1]), "kubeconfig"},
	} {
		t.Run(c.name, func(t *testing.T) {
			agenttest.WriteFile(t, conf, c.corefile)
			var stderr bytes.Buffer
			if code := run(t.Context(), []string{"-conf", conf, "-metrics-listen-address="}, io.Discard, &stderr); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("the error does not say %q:\n%s", c.want, &stderr)
			}
			ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p[1]))
			if err != nil {
				t.Fatalf("a socket is left: %v", err)
			}
			_ = ln.Close()
		})
	}
}

// TestVersion: -version is one line.
func TestVersion(t *testing.T) {
	var stdout bytes.Buffer
	if code := run(t.Context(), []string{"-version"}, &stdout, io.Discard); code != 0 || !strings.HasPrefix(stdout.String(), "nodens-dev linux/") || strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("-version: %d, %q", code, &stdout)
	}
}

// TestWait: it does nothing until it is asked to end, which is no failure.
func TestWait(t *testing.T) {
	p := startProcess(t, "agent", nil, "wait")
	p.AwaitLog("waiting")
	p.end()
}
