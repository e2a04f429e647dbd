package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// MemoryGroup is a control group with a memory limit.
type MemoryGroup struct{ dir string }

// ErrNoMemoryGroup: this process can't create control groups with a memory limit.
var ErrNoMemoryGroup = errors.New("no control group for memory")

// hierarchies are the roots of cgroup versions 1 and 2, with the file of the memory limit.
var hierarchies = []struct{ root, bound string }{
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	{"/sys/fs/cgroup", "memory.max"},
}

// NewMemoryGroup creates a group whose processes may use limit bytes together; Close removes it.
// ErrNoMemoryGroup.
func (l *Network) NewMemoryGroup(limit int64) (*MemoryGroup, error) {
	var errs []error
	for _, h := range hierarchies {
		g := &MemoryGroup{filepath.Join(h.root, l.Node)}
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		// Files of the kernel can't be created.
		err := writeFile(filepath.Join(g.dir, h.bound), strconv.FormatInt(limit, 10))
		if err == nil {
			l.Cleanup(func() { _ = os.Remove(g.dir) })
			return g, nil
		}
		errs = append(errs, err, os.Remove(g.dir))
	}
	return nil, fmt.Errorf("%w: %w", ErrNoMemoryGroup, errors.Join(errs...))
}

// Add moves a process into the group. Memory that it has allocated before does not count.
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
