package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
)

// cgroupRoot is where control groups are mounted: of version 1 one folder for each
// controller, of version 2 one for all. Version 2 follows the kernel's documentation, and
// has not been tried: the machines that this runs on have version 1.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupHierarchies are the folders that groups are made in.
func cgroupHierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		// Links are second names of a folder.
		if e.IsDir() {
			found = append(found, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return found, nil
}

// cgroupName is the name of the control groups of a cluster, of which one of this process
// is the n-th.
func cgroupName(pid int, n int64) string { return fmt.Sprintf("%s%d-%d", cgroupPrefix, pid, n) }

// cgroupPrefix begins the names of all clusters' control groups.
const cgroupPrefix = "nodens-e2e-"

// removeStaleCgroups removes the control groups of clusters whose process was killed: all else ends
// with it.
func removeStaleCgroups() error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		found, err := filepath.Glob(filepath.Join(root, cgroupPrefix+"*"))
		if err != nil {
			return err
		}
		for _, dir := range found {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), "-")
			if _, err := os.Stat(filepath.Join("/proc", pid)); err == nil {
				continue
			}
			// One that is just ending is left to the next.
			if err := removeDirs(dir); err != nil && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("removing what a cluster has left: %w", err)
			}
		}
	}
	return nil
}

// createCgroup makes a control group, which may have groups above it, for each controller.
func createCgroup(name string) error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := initCgroup(root, name); err != nil {
			return err
		}
	}
	return nil
}

// initCgroup gives the group what it doesn't have by itself: of version 1 the processors and
// the memory that its processes may use, of version 2 the controllers.
func initCgroup(root, name string) error {
	hand := copyCPUSet
	if root == cgroupRoot {
		hand = enableControllers
	}
	dir := root
	for part := range strings.SplitSeq(name, "/") {
		parent := dir
		dir = filepath.Join(parent, part)
		if err := hand(parent, dir); err != nil {
			return err
		}
	}
	return nil
}

// copyCPUSet copies what is only in the hierarchy of cpuset.
func copyCPUSet(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enableControllers has the parent's controllers in the groups below it too.
func enableControllers(parent, _ string) error {
	text, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(text)) {
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a group with all below it. It waits for processes that are just
// ending.
func removeCgroup(ctx context.Context, name string) error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	return peer.Await(ctx, "control groups to be empty", func(context.Context) error {
		for _, root := range roots {
			if err := removeDirs(filepath.Join(root, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeDirs removes a folder of folders. Its files are the kernel's and go with it.
func removeDirs(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		if gone := os.Remove(d); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
