package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// indexName is the index with which the release's files are a Helm repository.
const indexName = "index.yaml"

// writeIndex adds the index.
func (m *maker) writeIndex(context.Context) error {
	name := chartName(m.version)
	body, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		return err
	}
	text, err := chartIndex(name, body)
	if err != nil {
		return err
	}
	return m.add(indexName, text)
}

// chartIndex returns the index of a repository with this chart: the fields of Chart.yaml, the time at which that file
// was written, the chart's checksum, and a URL relative to the index.
func chartIndex(name string, body []byte) ([]byte, error) {
	about, modified, err := readAbout(name, body)
	if err != nil {
		return nil, err
	}
	entry := make(map[string]any)
	if err := yaml.Unmarshal(about, &entry); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	created := modified.UTC().Format(time.RFC3339)
	entry["created"], entry["digest"], entry["urls"] = created, sha256Hex(body), []string{name}
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "entries": map[string]any{"nodens": []any{entry}}, "generated": created,
	})
}

// readAbout returns a chart's Chart.yaml, and the file's time.
func readAbout(name string, chart []byte) (text []byte, modified time.Time, err error) {
	const file = "nodens/Chart.yaml"
	files, err := openArchive(name, chart)
	if err != nil {
		return nil, modified, fmt.Errorf("%s: %w", name, err)
	}
	info, err := fs.Stat(files, file)
	if err != nil {
		return nil, modified, fmt.Errorf("%s: %w", name, err)
	}
	text, err = fs.ReadFile(files, file)
	return text, info.ModTime(), err
}

// checkIndex checks that the index is the one that chartIndex makes from the chart.
func (v *verifier) checkIndex() error {
	text, err := v.read(indexName)
	if err != nil {
		return err
	}
	name := chartName(v.version)
	chart, err := v.read(name)
	if err != nil {
		return err
	}
	want, err := chartIndex(name, chart)
	if err != nil {
		return err
	}
	lines, wanted := strings.Split(string(text), "\n"), strings.Split(string(want), "\n")
	for i, line := range lines[:min(len(lines), len(wanted))] {
		if line != wanted[i] {
			return fmt.Errorf("%s has the line %q, want %q of %s", indexName, line, wanted[i], name)
		}
	}
	if len(lines) != len(wanted) {
		return fmt.Errorf("%s has %d lines, want %d", indexName, len(lines), len(wanted))
	}
	return nil
}
