package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryGroup is a control group with a memory limit.
type MemoryGroup struct {
	dir   string
	files hierarchy
}

// ErrNoMemoryGroup: this process can't create control groups with a memory limit.
var ErrNoMemoryGroup = errors.New("no control group for memory")

// hierarchy is the root of a version of control groups with the names of its files.
type hierarchy struct{ root, bound, used, peak, events string }

// hierarchies are those of versions 1 and 2.
var hierarchies = []hierarchy{
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"},
	{"/sys/fs/cgroup", "memory.max", "memory.current", "memory.peak", "memory.events"},
}

// NewMemoryGroup creates a group whose processes may use limit bytes together; Close removes it.
// ErrNoMemoryGroup.
func (l *Network) NewMemoryGroup(limit int64) (*MemoryGroup, error) {
	g, err := NewMemoryGroup(l.Node, limit)
	if err == nil {
		l.Cleanup(g.Remove)
	}
	return g, err
}

// NewMemoryGroup creates a group whose processes may use limit bytes together. The caller removes it.
// ErrNoMemoryGroup.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	var errs []error
	for _, h := range hierarchies {
		g := &MemoryGroup{filepath.Join(h.root, name), h}
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		// Files of the kernel can't be created.
		err := writeFile(filepath.Join(g.dir, h.bound), strconv.FormatInt(limit, 10))
		if err == nil {
			return g, nil
		}
		errs = append(errs, err, os.Remove(g.dir))
	}
	return nil, fmt.Errorf("%w: %w", ErrNoMemoryGroup, errors.Join(errs...))
}

// Remove removes the group, whose processes have ended.
func (g *MemoryGroup) Remove() { _ = os.Remove(g.dir) }

// Inside returns the arguments of a command that enters the group before it runs args.
func (g *MemoryGroup) Inside(args ...string) []string {
	return append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs")}, args...)
}

// MemoryUsage is what the processes of a group use in bytes, now and at most so far. Peak is zero if the kernel doesn't
// know it, as Linux before 5.19 with version 2. Kills is how many processes the kernel has killed because of the limit.
type MemoryUsage struct{ Used, Peak, Kills uint64 }

// Usage returns what the group uses.
func (g *MemoryGroup) Usage() (u MemoryUsage, err error) {
	for _, file := range []struct {
		name string
		to   *uint64
	}{{g.files.used, &u.Used}, {g.files.peak, &u.Peak}} {
		text, err := os.ReadFile(filepath.Join(g.dir, file.name))
		if errors.Is(err, fs.ErrNotExist) && file.to == &u.Peak {
			continue
		}
		if err != nil {
			return u, err
		}
		if *file.to, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return u, fmt.Errorf("%s: %w", file.name, err)
		}
	}
	events, err := os.ReadFile(filepath.Join(g.dir, g.files.events))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(events)) {
		if number, ok := strings.CutPrefix(line, "oom_kill "); ok {
			u.Kills, err = strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		}
	}
	return u, err
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
