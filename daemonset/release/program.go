package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"
)

// std is what the go command calls the standard library's module.
const std = "std"

// program is the compiled command, for one system.
type program struct {
	os, arch string
	binary   []byte
	info     *buildinfo.BuildInfo
	modules  []module
	// license is the text of the agent's own licence.
	license []byte
}

// compile compiles the agent for one system. It blocks while the compiler runs: seconds, or a
// minute the first time.
func (s source) compile(ctx context.Context, goos, goarch string) (*program, error) {
	dir, err := os.MkdirTemp("", "nodens-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "nodens")
	// Without cgo the agent needs no libc. Without paths the build is reproducible.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", fmt.Sprintf("-buildvcs=%t", s.tagged),
		"-ldflags", fmt.Sprintf("-s -w -X main.version=%s -X main.revision=%s", s.version, s.revision),
		"-o", out, "./cmd/nodens")
	cmd.Dir = s.top
	// The user's own settings of these variables would change the binary.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOFLAGS=", "GOWORK=off",
		"GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the agent for %s/%s: %w\n%s", goos, goarch, err, text)
	}
	p := &program{os: goos, arch: goarch}
	if p.binary, err = os.ReadFile(out); err != nil {
		return nil, err
	}
	if p.info, err = buildinfo.Read(bytes.NewReader(p.binary)); err != nil {
		return nil, fmt.Errorf("the modules of the agent: %w", err)
	}
	if p.modules, err = s.modules(ctx, p.info, cmd.Env); err != nil {
		return nil, err
	}
	p.license, err = os.ReadFile(filepath.Join(s.top, "LICENSE"))
	return p, err
}

// module is a Go module that is linked into a program.
type module struct {
	path, version string
	// license are its licences as an SPDX expression, as far as their texts are known.
	license string
	// files are the license files, by name. They have to be distributed with the program.
	files fstest.MapFS
}

// linkedModules returns the modules in a program's build information, sorted by path.
func linkedModules(info *buildinfo.BuildInfo) []module {
	list := []module{{path: std, version: info.GoVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, module{path: m.Path, version: m.Version})
	}
	slices.SortFunc(list, func(a, b module) int { return cmp.Compare(a.path, b.path) })
	return list
}

// modules returns the modules of a program with the license files from the module cache. env
// is the compiler's environment.
func (s source) modules(ctx context.Context, info *buildinfo.BuildInfo, env []string) ([]module, error) {
	const format = "{{with .Module}}{{with .Replace}}{{.Path}}{{else}}{{.Path}}{{end}}\t{{.Dir}}{{end}}"
	text, err := output(ctx, s.top, env, "go", "list", "-deps", "-f", format, "./cmd/nodens")
	if err != nil {
		return nil, err
	}
	folders := make(map[string]string)
	for line := range strings.Lines(text) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		folders[name] = dir
	}
	if folders[std], err = firstLine(ctx, "", "go", "env", "GOROOT"); err != nil {
		return nil, err
	}
	list := linkedModules(info)
	for i := range list {
		if err := list[i].read(folders[list[i].path]); err != nil {
			return nil, fmt.Errorf("the license of module %s: %w", list[i].path, err)
		}
	}
	return list, nil
}

// licenseFileName matches license files in the root directory of a module.
var licenseFileName = regexp.MustCompile(`(?i)^(licen[cs]e|notice|copying|patents)([.-].*)?$`)

// read finds the license files in a module's root directory.
func (m *module) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	m.files = make(fstest.MapFS)
	var all strings.Builder
	for _, e := range entries {
		if e.IsDir() || !licenseFileName.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		all.Write(text)
		m.files[e.Name()] = &fstest.MapFile{Mode: 0o644, Data: text}
	}
	if len(m.files) == 0 {
		return fmt.Errorf("no license file in %s; a module without one can't be distributed", dir)
	}
	m.license = licenses(all.String())
	return nil
}

// licenses returns an SPDX expression of the licenses whose characteristic words are in
// text, or NOASSERTION if it recognizes none.
func licenses(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	var found []string
	for _, l := range []struct{ id, words string }{
		{"Apache-2.0", "Apache License Version 2.0"},
		{"BSD-3-Clause", "used to endorse or promote products derived from"},
		{"ISC", "Permission to use, copy, modify, and distribute this software for any purpose"},
		{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
		{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"MPL-2.0", "Mozilla Public License Version 2.0"},
		{"MPL-2.0", "Mozilla Public License, version 2.0"},
	} {
		if strings.Contains(text, l.words) && !slices.Contains(found, l.id) {
			found = append(found, l.id)
		}
	}
	// The three-clause license contains the words of the two-clause license.
	if strings.Contains(text, "Redistribution and use in source and binary forms") && !slices.Contains(found, "BSD-3-Clause") {
		found = append(found, "BSD-2-Clause")
	}
	return cmp.Or(strings.Join(found, " AND "), noAssertion)
}

const (
	agentPath   = "usr/local/bin/nodens"
	licensePath = "usr/share/doc/nodens/LICENSE"
)

// layer returns the program's files in the image.
func (p *program) layer() fstest.MapFS {
	files := fstest.MapFS{
		agentPath:   {Mode: 0o755, Data: p.binary},
		licensePath: {Mode: 0o644, Data: p.license},
	}
	for _, m := range p.modules {
		for name, f := range m.files {
			files[m.imagePath(name)] = f
		}
	}
	return files
}

// imagePath returns the path of a license file in the image.
func (m module) imagePath(name string) string {
	return path.Join("usr/share/doc/nodens/modules", m.path, name)
}

// heading is the line above a module's licences.
func (m module) heading() string { return "======== " + m.name() + " " + m.version }
