package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nodens-dns/nodens/test/peer"
)

// link links the fuzzers of a package and returns the path of the binary. The binaries are kept
// outside of the repository, where all clones share them: they are built with -trimpath. The go
// command leaves a binary as it is if nothing has changed.
func (r *runner) link(ctx context.Context, dir string) (string, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(dir, "./"), "/", "-") + ".test"
	cache, err := peer.CacheDir()
	if err != nil {
		return "", err
	}
	keep := filepath.Join(cache, "fuzz")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return "", err
	}
	kept := filepath.Join(keep, name)
	unlock, err := lock(kept + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	to := filepath.Join(r.bin, name)
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz", ".", "-trimpath", "-vet=off", "-ldflags=-w", "-o", kept, dir)
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), "CGO_ENABLED=0") // as the other tests, to share the build cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("linking the fuzzers of %s: %w\n%s", dir, err, out)
	}
	// Another clone may replace the kept binary while this one runs.
	if os.Link(kept, to) == nil {
		return to, nil
	}
	return to, copyBinary(kept, to)
}

// lock waits until no other process has the lock.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func copyBinary(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
