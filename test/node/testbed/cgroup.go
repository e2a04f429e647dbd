package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// MemoryGroup is a control group that bounds memory.
type MemoryGroup struct{ dir string }

// ErrNoMemoryGroup: this machine has no control groups that bound memory, or they can't be made
// here.
var ErrNoMemoryGroup = errors.New("no control group for memory")

// hierarchies are where memory is bounded, of version 1 and 2, with the file that holds
// the bound.
var hierarchies = []struct{ root, bound string }{
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	{"/sys/fs/cgroup", "memory.max"},
}

// NewMemoryGroup makes a group whose processes may take limit bytes together; Close of the lab
// removes it. The error wraps ErrNoGroup where the machine can't.
func (l *Network) NewMemoryGroup(limit int64) (*MemoryGroup, error) {
	var errs []error
	for _, h := range hierarchies {
		g := &MemoryGroup{filepath.Join(h.root, l.Node)}
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		// The files are the kernel's: one that is not there can't be made.
		err := writeFile(filepath.Join(g.dir, h.bound), strconv.FormatInt(limit, 10))
		if err == nil {
			l.Cleanup(func() { _ = os.Remove(g.dir) })
			return g, nil
		}
		errs = append(errs, err, os.Remove(g.dir))
	}
	return nil, fmt.Errorf("%w: %w", ErrNoMemoryGroup, errors.Join(errs...))
}

// Add puts a process into the group. What it has taken before is not counted.
func (g *MemoryGroup) Add(pid int) error {
	return writeFile(filepath.Join(g.dir, "cgroup.procs"), strconv.Itoa(pid))
}

func writeFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no %s: %w", file, err)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
