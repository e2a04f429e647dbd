package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestWithoutRace: every test that is skipped under the race detector runs without it.
func TestWithoutRace(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(withoutRace)
	skipping := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\t(?:race\.SkipSequential|if race\.Enabled)`)
	found := 0
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range skipping.FindAllSubmatch(text, -1) {
			if found++; !pattern.Match(name[1]) {
				t.Errorf("%s: %s is in no stage: it does not match %s", path, name[1], pattern)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 5 {
		t.Errorf("only %d tests found", found)
	}
}
