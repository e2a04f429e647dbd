package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// std is what the go command calls the standard library's module.
const std = "std"

// module is a Go module that is linked into a program.
type module struct {
	path, version string
	// license are its licences as an SPDX expression, as far as their texts are known.
	license string
	// licenseFiles have to be distributed with the program.
	licenseFiles []oci.File
}

// modules returns the modules listed in the binary's build information, with license files
// from the module cache. env is the compiler's environment.
func (s *settings) modules(ctx context.Context, binary []byte, env []string) ([]module, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("the modules of the agent: %w", err)
	}
	const format = "{{with .Module}}{{.Path}}\t{{.Dir}}{{end}}"
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
	list := []module{{path: std, version: info.GoVersion}}
	for _, m := range info.Deps {
		name := m.Path
		if m.Replace != nil {
			m = m.Replace
		}
		folders[m.Path] = folders[name]
		list = append(list, module{path: m.Path, version: m.Version})
	}
	for i := range list {
		if err := list[i].read(folders[list[i].path]); err != nil {
			return nil, fmt.Errorf("the license of module %s: %w", list[i].path, err)
		}
	}
	slices.SortFunc(list, func(a, b module) int { return cmp.Compare(a.path, b.path) })
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
		m.licenseFiles = append(m.licenseFiles, oci.File{Path: path.Join("usr/share/doc/nodens/modules", m.path, e.Name()), Mode: 0o644, Body: text})
	}
	if len(m.licenseFiles) == 0 {
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
