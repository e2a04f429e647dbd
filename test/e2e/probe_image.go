package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// probeImageRef is the image that names are asked from.
const probeImageRef = "probe:e2e"

// probeImage writes the image that names are asked from: busybox, test/e2e/probe,
// test/e2e/probe/resolve/resolve.c once with musl and once with glibc, and cares.c there, with this machine's
// libraries.
func probeImage(ctx context.Context, s *suite) (file string, err error) {
	build := filepath.Join(s.dir, "probe.d")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return "", err
	}
	root := filepath.Join(build, "root")
	if err := baseFiles(root); err != nil {
		return "", err
	}
	source := filepath.Join(s.root, "test/e2e/probe")
	resolver := []string{"-O2", filepath.Join(source, "resolve/resolve.c"), "-lresolv", "-o"}
	for _, p := range []struct {
		name string
		argv []string
	}{
		{"probe", []string{"go", "build", "-C", source, "-trimpath", "-ldflags", "-s -w", "-o"}},
		{"resolve-musl", append([]string{"musl-gcc", "-static"}, resolver...)},
		{"resolve-glibc", append([]string{"gcc"}, resolver...)},
		{"resolve-cares", []string{"gcc", "-O2", filepath.Join(source, "resolve/cares.c"), "-l:libcares.a", "-o"}},
	} {
		program := filepath.Join(build, p.name)
		cmd := exec.CommandContext(ctx, p.argv[0], append(p.argv[1:], program)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", p.name, err, out)
		}
		if err := cluster.CopyFile(root, "bin/"+p.name, program); err != nil {
			return "", err
		}
	}
	if err := addShell(ctx, root); err != nil {
		return "", err
	}
	if err := addLibraries(ctx, root, filepath.Join(build, "resolve-glibc")); err != nil {
		return "", err
	}
	return s.writeImage(ctx, cluster.Image{Name: probeImageRef, Root: root, Env: []string{"PATH=/bin"}, Command: []string{"sleep", "infinity"}})
}

// baseFiles writes what programs expect in every root directory.
func baseFiles(root string) error {
	// musl and Go look into /etc/hosts first by default; glibc is told to.
	return errors.Join(
		os.RemoveAll(root), // of an earlier run in the same directory
		os.MkdirAll(filepath.Join(root, "tmp"), 0o755),
		os.Chmod(filepath.Join(root, "tmp"), fs.ModeSticky|0o777),
		os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/nsswitch.conf"), []byte("hosts: files dns\n"), 0o644),
	)
}

// addShell adds busybox under each of its names.
func addShell(ctx context.Context, root string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w: install busybox-static", err)
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	if err := cluster.CopyFile(root, "bin/busybox", busybox); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// addLibraries adds what a dynamically linked program needs: the interpreter that it
// names, and its libraries in a directory that every interpreter searches.
func addLibraries(ctx context.Context, root, program string) error {
	at, names, err := linkedLibraries(program)
	if err != nil {
		return err
	}
	if err := cluster.CopyFile(root, at, at); err != nil {
		return err
	}
	// Parts of libc.so.6 from glibc 2.34 on, files of their own before.
	for _, name := range append(names, "libnss_files.so.2", "libnss_dns.so.2") {
		out, err := exec.CommandContext(ctx, "gcc", "-print-file-name="+name).Output()
		if err != nil {
			return fmt.Errorf("asking gcc for %s: %w", name, err)
		}
		found := strings.TrimSpace(string(out))
		if !filepath.IsAbs(found) || path.Base(at) == name {
			continue
		}
		if err := cluster.CopyFile(root, "lib/"+name, found); err != nil {
			return err
		}
	}
	return nil
}

// linkedLibraries are the interpreter and the libraries that a dynamic program names.
func linkedLibraries(program string) (interpreter string, names []string, err error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	section := file.Section(".interp")
	if section == nil {
		return "", nil, errors.New("gcc links statically: the probe needs a glibc that is loaded")
	}
	text, err := section.Data()
	if err != nil {
		return "", nil, err
	}
	names, err = file.ImportedLibraries()
	return strings.TrimRight(string(text), "\x00"), names, err
}
