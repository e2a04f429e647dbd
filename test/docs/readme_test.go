package docs

import (
	"slices"
	"testing"
)

// The two commands that the README is about.
func TestCommands(t *testing.T) {
	text, _ := document(t, "README.md")
	for _, want := range []string{"make run\n", "make test\n"} {
		if !slices.ContainsFunc(fences(text), func(f fence) bool { return f.language == "sh" && f.text == want }) {
			t.Errorf("no sh fence is %q", want)
		}
	}
}
