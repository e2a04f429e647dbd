//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestFlush: the command removes names from the caches of a running agent, and tells
// how many entries that were; what is asked next is asked upstream.
func TestFlush(t *testing.T) {
	p := peer.Ports(t, 2)
	upstream := func(ip string) string {
		names := ""
		for _, n := range []string{"a.test", "www.a.test", "b.test"} {
			names += fmt.Sprintf("  %s %s\n", ip, n)
		}
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n%s }\n}\n", p[1], names)
	}
	up := startAgent(t, upstream("192.0.2.1"))
	socket := filepath.Join(t.TempDir(), "a.sock")
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n cache 300\n forward . 127.0.0.1:%d\n}\n", p[0], p[1]), "-admin-socket", socket)
	all := []string{"a.test.", "www.a.test.", "b.test."}
	for _, name := range all {
		agenttest.Expect(t, p[0], name, "192.0.2.1")
	}
	up.Reload(upstream("192.0.2.2"), "the new configuration is in force")
	fresh := make(map[string]bool)
	for _, c := range []struct {
		args, out string
		gone      []string
	}{
		{"c.test", "0 entries removed\n", nil},
		{"A.test", "1 entries removed\n", []string{"a.test."}},
		{"-subtree a.test.", "2 entries removed\n", []string{"a.test.", "www.a.test."}},
		{"-subtree .", "3 entries removed\n", all},
	} {
		var out, stderr bytes.Buffer
		args := append([]string{"flush", "--admin-socket", socket}, strings.Fields(c.args)...)
		if code := run(t.Context(), args, &out, &stderr); code != 0 || out.String() != c.out {
			t.Fatalf("flush %s: %d %q %q, want %q", c.args, code, &out, &stderr, c.out)
		}
		for _, name := range c.gone {
			fresh[name] = true
		}
		for _, name := range all {
			want := "192.0.2.1"
			if fresh[name] {
				want = "192.0.2.2"
			}
			if got := agenttest.Ask(t, p[0], name); got != want {
				t.Errorf("after flush %s %s is %s, want %s", c.args, name, got, want)
			}
		}
	}
}

// TestFlushCommand: what the command refuses, and what it says where no agent is.
func TestFlushCommand(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"flush", 2, "takes one name"},
		{"flush a b", 2, "takes one name"},
		{"flush -subtre a", 2, "subtre"},
		{"flush example.org -admin-socket /nonexistent/s", 1, "--admin-socket /nonexistent/s"},
		{"flush -socket /nonexistent/s example.org", 1, "--admin-socket /nonexistent/s"}, // earlier name
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(c.args), io.Discard, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", c.args, code, &stderr, c.code, c.want)
		}
	}
}
