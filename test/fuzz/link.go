package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// link links the fuzzers of a package and returns the path of the binary. The binaries are kept
// outside of the repository, where all clones share them: they are built with -trimpath. The go
// command leaves a binary as it is if nothing has changed.
func (r *runner) link(ctx context.Context, dir string) (string, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(dir, "./"), "/", "-") + ".test"
	args := []string{"test", "-c", "-vet=off", "-trimpath", "-ldflags=-w"}
	if r.unguided {
		name = "unguided-" + name
	} else {
		args = append(args, "-fuzz", ".")
	}
	cache, err := toolcache.Open()
	if err != nil {
		return "", err
	}
	keep := filepath.Join(cache.Dir(), "fuzz")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return "", err
	}
	kept := filepath.Join(keep, name)
	unlock, err := cache.Lock(ctx, filepath.Join("fuzz", name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	to := filepath.Join(r.bin, name)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", kept, dir)...)
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), "CGO_ENABLED=0") // as the other tests, to share the build cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("linking the fuzzers of %s: %w\n%s", dir, err, out)
	}
	// Another clone may replace the kept binary while this one runs.
	if os.Link(kept, to) == nil {
		return to, nil
	}
	body, err := os.ReadFile(kept) // r.bin is on another file system
	if err != nil {
		return "", err
	}
	return to, os.WriteFile(to, body, 0o755)
}
