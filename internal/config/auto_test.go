package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAutoFaults: what is wrong with an auto directive is named with its remedy.
func TestAutoFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const usage = "write: directory DIR [REGEXP ORIGIN_TEMPLATE]"
	wantFaults(t, map[string]string{
		"auto":                               "Corefile:2: auto: no directory; write in its block: directory DIR [REGEXP ORIGIN_TEMPLATE]",
		"auto {\n directory\n}":              "Corefile:3: auto: an argument is missing after \"directory\"; " + usage,
		"auto {\n directory \"\"\n}":         "Corefile:3: auto directory: the directory's name is empty",
		"auto {\n directory a b(.*)\n}":      `Corefile:3: auto directory: the zone's name is missing after the regular expression "b(.*)", such as {1}; ` + usage,
		"auto {\n directory a b {1} c\n}":    `"c" is one argument too many`,
		"auto {\n directory a b( {1}\n}":     "missing closing )",
		"auto {\n directory a b {1}\n}":      `the regular expression "b" has no group in parentheses`,
		"auto {\n directory " + file + "\n}": file + " is a file; name the directory that it is in",
		"auto {\n directory a " + strings.Repeat("(a)", 3334) + " {1}\n}": "more than 10000 bytes",
		"auto {\n directory a\n reload -1s\n}":                            "-1s is out of range",
		"auto {\n directory a\n}\nauto {\n directory b\n}":                `"auto" is in the block twice`,
	})
}
