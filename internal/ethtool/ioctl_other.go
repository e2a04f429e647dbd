//go:build !linux

package ethtool

// Counter reads one counter of the driver of an interface. Only Linux has them.
func Counter(_, _ string) (uint64, error) { return 0, ErrNoCounter }
