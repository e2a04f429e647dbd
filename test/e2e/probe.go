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
	"runtime"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// probeName is the image that names are asked from.
const probeName = "probe:e2e"

// probeImage writes the image that names are asked from: busybox, test/e2e/probe, and
// test/e2e/probe/resolve once with musl and once with glibc, whose libraries are this
// machine's.
func probeImage(ctx context.Context, s *suite) (file string, err error) {
	build := filepath.Join(s.dir, "probe.d")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return "", err
	}
	layer := oci.Layer{
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		// musl and Go look into /etc/hosts first without being told to.
		{Path: "etc/nsswitch.conf", Mode: 0o644, Body: []byte("hosts: files dns\n")},
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
	} {
		program := filepath.Join(build, p.name)
		cmd := exec.CommandContext(ctx, p.argv[0], append(p.argv[1:], program)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", p.name, err, out)
		}
		if layer, err = carry(layer, "bin/"+p.name, program); err != nil {
			return "", err
		}
	}
	if layer, err = shell(ctx, layer); err != nil {
		return "", err
	}
	if layer, err = libraries(ctx, layer, filepath.Join(build, "resolve-glibc")); err != nil {
		return "", err
	}
	return s.image(probeName, oci.Image{
		Architecture: runtime.GOARCH,
		Layers:       []oci.Layer{layer},
		Env:          []string{"PATH=/bin"},
		Command:      []string{"sleep", "infinity"},
	})
}

// carry adds a program or library of this machine.
func carry(layer oci.Layer, to, from string) (oci.Layer, error) {
	body, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	return append(layer, oci.File{Path: to, Mode: 0o755, Body: body}), nil
}

// shell adds busybox under each of its names.
func shell(ctx context.Context, layer oci.Layer) (oci.Layer, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: install busybox-static", err)
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			layer = append(layer, oci.File{Path: "bin/" + name, Mode: fs.ModeSymlink | 0o777, Link: "busybox"})
		}
	}
	return carry(layer, "bin/busybox", busybox)
}

// libraries adds what a dynamic program needs: its interpreter, under the path that it
// names, and its libraries, where every interpreter looks.
func libraries(ctx context.Context, layer oci.Layer, program string) (oci.Layer, error) {
	at, names, err := needs(program)
	if err != nil {
		return nil, err
	}
	if layer, err = carry(layer, strings.TrimPrefix(at, "/"), at); err != nil {
		return nil, err
	}
	// Parts of libc.so.6 from glibc 2.34 on, files of their own before.
	for _, name := range append(names, "libnss_files.so.2", "libnss_dns.so.2") {
		out, err := exec.CommandContext(ctx, "gcc", "-print-file-name="+name).Output()
		if err != nil {
			return nil, fmt.Errorf("asking gcc for %s: %w", name, err)
		}
		found := strings.TrimSpace(string(out))
		if !filepath.IsAbs(found) || path.Base(at) == name {
			continue
		}
		if layer, err = carry(layer, "lib/"+name, found); err != nil {
			return nil, err
		}
	}
	return layer, nil
}

// needs are the interpreter and the libraries that a dynamic program names.
func needs(program string) (interpreter string, names []string, err error) {
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
