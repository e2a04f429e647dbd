// Package race tells tests whether the race detector is on. Under it, a [sync.Pool] drops
// items at random, so tests can't count allocations, and everything runs several times slower.
package race

import (
	"runtime/debug"
	"slices"
	"testing"
)

// SkipSequential skips a test under the race detector. It is for tests that compute much on one
// goroutine, where the detector finds nothing, and for those that measure memory. test/run
// runs them without the detector; their names are in its pattern.
func SkipSequential(t testing.TB) {
	t.Helper()
	if Enabled() {
		t.Skip("runs without the race detector only")
	}
}

// Enabled reports whether the running program was built with -race.
func Enabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
