package agenttest

import (
	"os"
	"testing"
)

// ReplaceFile writes text to a new file and renames it to path, so that a reader sees either
// the old content or the new one.
func ReplaceFile(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
