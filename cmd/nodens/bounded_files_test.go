//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// largeFile makes a file of zeros with so many bytes, which takes no space on the disk.
func largeFile(t *testing.T, name string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	agenttest.WriteFile(t, path, "")
	check.NoError(t, os.Truncate(path, size))
	return path
}

// TestBoundedFiles: no file that a Corefile or a flag names is read without a bound, or waited for. The error names the
// file and the bound.
func TestBoundedFiles(t *testing.T) {
	p := peer.Ports(t, 1)
	large, manifest := largeFile(t, "file", 2<<20), largeFile(t, "m.yaml", 33<<20)
	many := t.TempDir()
	for i := range 3 {
		agenttest.WriteFile(t, filepath.Join(many, fmt.Sprintf("%d.yaml", i)), strings.Repeat("#\n", 12<<20))
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	check.NoError(t, syscall.Mkfifo(pipe, 0o600))
	const unwritten = "is a pipe that no program writes to"
	const megabyte, bytes = "it is larger than 1 MiB", "is larger than 1048576 bytes"
	for _, c := range []struct{ name, body, path, want string }{
		{"import", "import " + large, large, bytes},
		{"CA of an upstream", "forward . tls://127.0.0.1 {\n tls " + large + "\n}", large, bytes},
		{"certificate of an upstream", "forward . tls://127.0.0.1 {\n tls " + large + " " + large + "\n}", large, bytes},
		{"device as CA", "forward . tls://127.0.0.1 {\n tls /dev/zero\n}", "/dev/zero", bytes},
		{"kubeconfig", "kubernetes cluster.local {\n kubeconfig " + large + "\n}", large, megabyte},
		{"device as kubeconfig", "kubernetes cluster.local {\n kubeconfig /dev/zero\n}", "/dev/zero", "not a regular file"},
		{"credentials", "kubernetes cluster.local {\n endpoint https://127.0.0.1:1\n tls " + large + " " + large + " " + large + "\n}", large, megabyte},
		{"manifest", "kubernetes cluster.local {\n manifests " + manifest + "\n}", manifest, "it is larger than 32 MiB"},
		{"device as manifest", "kubernetes cluster.local {\n manifests /dev/zero\n}", "/dev/zero", "not a regular file"},
		{"manifests", "kubernetes cluster.local {\n manifests " + many + "\n}", many, "more than 64 MiB together"},
		{"name servers", "forward . " + large, large, bytes},
		{"pipe as import", "import " + pipe, pipe, unwritten},
		{"pipe as name servers", "forward . " + pipe, pipe, unwritten},
		{"pipe as CA", "forward . tls://127.0.0.1 {\n tls " + pipe + "\n}", pipe, unwritten},
		{"pipe as search path", "autopath " + pipe, pipe, unwritten},
		{"pipe as keys", "tsig {\n secrets " + pipe + "\n}", pipe, unwritten},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := agenttest.WriteCorefile(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n %s\n}\n", p[0], c.body))
			code, _, stderr := outcome(t, "-conf", conf, "-metrics-listen-address=")
			if code == 0 || !strings.Contains(stderr, c.path) || !strings.Contains(stderr, c.want) {
				t.Errorf("%d, want %q:\n%.1000s", code, c.want, stderr)
			}
		})
	}
	for path, want := range map[string]string{large: bytes, pipe: unwritten} {
		for _, args := range [][]string{{"check", "-conf", path}, {"-conf", path}} {
			if code, _, stderr := outcome(t, args...); code == 0 || !strings.Contains(stderr, path+" "+want) {
				t.Errorf("%v: %d %.1000s", args, code, stderr)
			}
		}
	}
}
