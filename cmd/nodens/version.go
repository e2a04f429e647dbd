package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
)

// version and revision are set by the linker in released binaries.
var version, revision = "dev", ""

// buildInfo describes this binary. The commit is the one the linker was given, else the
// one that the go tool recorded.
func buildInfo() options.Build {
	commit := revision
	if info, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return options.Build{Version: version, Commit: cmp.Or(commit, "unknown"), GoVersion: runtime.Version()}
}
