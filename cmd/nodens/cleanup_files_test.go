//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestCleanupFiles: the clean-up removes all files that a killed agent of the manifest leaves in its directory, and no others.
func TestCleanupFiles(t *testing.T) {
	f := newAgentFlags()
	f.HandoverDir = t.TempDir()
	view := regexp.MustCompile(`(?m)^ +save /var/lib/nodens/(.+)$`).FindSubmatch(daemonset.Manifest)
	if view == nil {
		t.Fatal("the manifest saves no view")
	}
	left := []string{"admin.sock", "cache", "handover.sock", string(view[1])}
	for _, name := range append(left, "other") {
		check.NoError(t, os.WriteFile(filepath.Join(f.HandoverDir, name), nil, 0o600))
	}
	var r cleanupReport
	check.NoError(t, removeFiles(f, &r))
	var removed []string
	for _, o := range r.Removed {
		removed = append(removed, filepath.Base(o.Path))
	}
	slices.Sort(removed)
	check.Equal(t, left, removed, "removed files")
	check.NoError(t, removeFiles(f, &r)) // there is nothing any more
	if _, err := os.Stat(filepath.Join(f.HandoverDir, "other")); err != nil {
		t.Error(err)
	}
}
