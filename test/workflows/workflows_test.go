// Package workflows checks the hosted workflows for what actionlint leaves open: how much a
// compromised action or a stranger's pull request could do with them.
package workflows_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what is read of a workflow.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Permissions map[string]string
		Timeout     int `json:"timeout-minutes"`
		Steps       []struct {
			Uses, Run string
			With      map[string]any
		}
	}
}

var (
	// pinned matches an action by commit, with its version as comment for readers and updates.
	pinned = regexp.MustCompile(`uses: [\w./-]+@[0-9a-f]{40} # v[0-9.]+$`)
	// expression matches what a workflow puts into a script before a shell reads it.
	expression = regexp.MustCompile(`\$\{\{ *([\w.-]+) *\}\}`)
)

func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d workflows (%v), want four", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range faults(t, string(text)) {
				t.Error(fault)
			}
		})
	}
}

// faults returns what is wrong with a workflow.
func faults(t *testing.T, text string) (list []string) {
	t.Helper()
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	if w.Permissions == nil || len(w.Permissions) > 0 {
		list = append(list, "the workflow does not begin with permissions: {}")
	}
	if strings.Contains(text, "pull_request_target") || strings.Contains(text, "workflow_run") {
		list = append(list, "it runs with the repository's rights for a stranger's change")
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "uses: ") && !pinned.MatchString(strings.TrimSpace(line)) {
			list = append(list, "not pinned by commit, with a version: "+strings.TrimSpace(line))
		}
	}
	for name, job := range w.Jobs {
		if job.Permissions == nil || job.Timeout == 0 {
			list = append(list, name+" has no permissions or no timeout-minutes")
		}
		for _, s := range job.Steps {
			if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false {
				list = append(list, name+" keeps the token in .git: set persist-credentials: false")
			}
			for _, m := range expression.FindAllStringSubmatch(s.Run, -1) {
				if !strings.HasPrefix(m[1], "matrix.") {
					list = append(list, name+" runs text of "+m[1]+": pass it in env")
				}
			}
		}
	}
	return list
}

// TestFaults: each rule finds what it is about.
func TestFaults(t *testing.T) {
	const good = `on: push
permissions: {}
jobs:
  a:
    timeout-minutes: 1
    permissions: {contents: read}
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with: {persist-credentials: false}
      - run: make ${{ matrix.target }}
`
	if list := faults(t, good); list != nil {
		t.Errorf("a sound workflow has the faults %q", list)
	}
	for _, change := range [][2]string{
		{"permissions: {}", "permissions: {contents: write}"}, {"permissions: {}\n", ""}, {"on: push", "on: pull_request_target"},
		{"3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "v7"}, {" # v7.0.1", ""}, {"persist-credentials: false", "fetch-depth: 0"},
		{"    timeout-minutes: 1\n", ""}, {"    permissions: {contents: read}\n", ""}, {"matrix.target", "github.head_ref"},
	} {
		if list := faults(t, strings.Replace(good, change[0], change[1], 1)); len(list) != 1 {
			t.Errorf("with %q for %q: %q, want one fault", change[1], change[0], list)
		}
	}
}
