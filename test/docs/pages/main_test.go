package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestRun(t *testing.T) {
	root := fstest.MapFS{
		"README.md":       {Data: []byte("a b\nc\n")},
		"docs/a/page.md":  {Data: []byte("# d\n")},
		"docs/a/page.svg": {Data: []byte("e\n")},
	}
	var b strings.Builder
	if err := run(&b, root); err != nil {
		t.Fatal(err)
	}
	want := []string{"lines words page", "2 3 README.md", "1 2 docs/a/page.md", "3 5 2 pages"}
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if i >= len(want) || strings.Join(strings.Fields(line), " ") != want[i] {
			t.Errorf("line %d is %q, want %q", i, line, want)
		}
	}
	if run(&b, fstest.MapFS{}) == nil {
		t.Error("no error without pages")
	}
}
