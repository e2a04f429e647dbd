package main

import (
	"context"
	"path/filepath"
	"strings"
)

// changedFiles returns the files that differ from the revision, and those that git does
// not track and does not ignore. They are relative to root.
func changedFiles(ctx context.Context, root, revision string) ([]string, error) {
	tracked, err := output(ctx, root, "git", "diff", "--name-only", "-z", revision, "--")
	if err != nil {
		return nil, err
	}
	others, err := output(ctx, root, "git", "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(tracked)+string(others), func(c rune) bool { return c == 0 }), nil
}

// selectChanged returns the packages that own one of the files or whose test binary
// contains such a package, and the files that no package owns. A file belongs to the
// nearest package above it; a module file belongs to every package of its module. What a
// test reads or runs without importing it does not count.
func selectChanged(packages []*testPackage, root string, files []string) (selected []*testPackage, outside []string) {
	changed := make(map[string]bool) // by import path
	for _, f := range files {
		owners := owners(packages, root, f)
		if len(owners) == 0 {
			outside = append(outside, f)
		}
		for _, p := range owners {
			changed[p.ImportPath] = true
		}
	}
	for _, p := range packages {
		if p.isChanged(changed) {
			selected = append(selected, p)
		}
	}
	return selected, outside
}

func (p *testPackage) isChanged(changed map[string]bool) bool {
	for path := range changed {
		if path == p.ImportPath || p.deps[path] {
			return true
		}
	}
	return false
}

// owners returns the packages that a file belongs to.
func owners(packages []*testPackage, root, file string) (list []*testPackage) {
	path := filepath.Join(root, file)
	if base := filepath.Base(path); base == "go.mod" || base == "go.sum" {
		for _, p := range packages {
			if p.module == filepath.Dir(path) {
				list = append(list, p)
			}
		}
		return list
	}
	for dir := filepath.Dir(path); len(dir) >= len(root); dir = filepath.Dir(dir) {
		for _, p := range packages {
			if p.Dir == dir {
				return []*testPackage{p}
			}
		}
	}
	return nil
}
