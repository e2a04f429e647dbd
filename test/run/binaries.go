package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// openBinaries returns the directory of the test binaries, and a function that gives it back.
// The binaries stay there for the next run: the go command does not link a binary again that
// would not change, which saves minutes. Only one run at a time uses them; another one gets a
// temporary directory.
func openBinaries() (dir string, release func(), err error) {
	cache, err := toolcache.Open()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(cache.Dir(), "tests")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return dir, func() { _ = lock.Close() }, nil
	}
	_ = lock.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return "", nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	dir, err = os.MkdirTemp("", "nodens-tests-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// keepBinaries makes a stage of go test write its test binaries to a directory of its own or of the stage
// whose binaries it uses, below binaries, without the tables for debuggers, and run them by test/cpu.sh.
// The fuzzers have such a directory, too.
func (s *stage) keepBinaries(binaries string) error {
	dir := filepath.Join(binaries, strings.NewReplacer(",", "", " ", "-").Replace(cmp.Or(s.binaries, s.name)))
	switch {
	case s.name == "fuzzers":
		s.args = append(s.args, "-binaries", dir)
	case s.args[0] == "go" && s.args[1] == "test":
		measure, err := filepath.Abs("test/cpu.sh")
		if err != nil {
			return err
		}
		s.args = slices.Insert(s.args, 2, "-o", dir+"/", "-ldflags=-s -w", "-exec", "bash '"+measure+"'")
	default:
		return nil
	}
	return os.MkdirAll(dir, 0o755)
}
