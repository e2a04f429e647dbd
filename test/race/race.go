// Package race tells tests whether the race detector is on. Under it, a [sync.Pool] drops
// items at random, so tests can't count allocations, and everything runs several times slower.
package race

import (
	"runtime/debug"
	"slices"
)

// Enabled reports whether the running program was built with -race.
func Enabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
