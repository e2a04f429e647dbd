package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// groupsAt is where control groups are mounted: of version 1 one folder for each
// controller, of version 2 all.
const groupsAt = "/sys/fs/cgroup"

// hierarchies are the folders that groups are made in.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(groupsAt, "cgroup.controllers")); err == nil {
		return []string{groupsAt}, nil
	}
	entries, err := os.ReadDir(groupsAt)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		// Links are second names of a folder.
		if e.IsDir() {
			found = append(found, filepath.Join(groupsAt, e.Name()))
		}
	}
	return found, nil
}

// makeGroup makes a control group, which may have groups above it, for each controller.
func makeGroup(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := inherit(root, name); err != nil {
			return err
		}
	}
	return nil
}

// inherit gives the group what groups of some controllers don't have by themselves: of
// version 1 the processors and the memory, of version 2 the controllers.
func inherit(root, name string) error {
	parts := []string{root}
	for part := range strings.SplitSeq(name, "/") {
		parent := parts[len(parts)-1]
		dir := filepath.Join(parent, part)
		parts = append(parts, dir)
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
	}
	return nil
}

// removeGroup removes a group with all below it. It waits for processes that are just
// ending.
func removeGroup(ctx context.Context, name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	return peer.Await(ctx, "control groups to be empty", func(context.Context) error {
		for _, root := range roots {
			if err := removeFolders(filepath.Join(root, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeFolders removes a folder of folders. Its files are the kernel's and go with it.
func removeFolders(dir string) error {
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
