package main

import (
	"fmt"
	"io/fs"
	"time"

	"sigs.k8s.io/yaml"
)

// indexName is the index with which the release's files are a Helm repository.
const indexName = "index.yaml"

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
