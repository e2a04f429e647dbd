package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// notOnOSSFuzz are fuzzers that test/oss-fuzz/build.sh leaves out, with the reason.
var notOnOSSFuzz = []string{"server/kernelpath FuzzProgram"}

// builder stands for the program that OSS-Fuzz builds a fuzzer with. Like that program, it
// searches the package's directory and those below it for the fuzzer, and takes all test files
// as files of one package. If $COMPILE is not empty, it compiles them so.
const builder = `#!/bin/sh -eu
dir=${1#github.com/nodens-dns/nodens/}
echo "$dir $2 $3" >>"$BUILT"
if [ "$(grep -rs --include='*.go' "func $2" "$dir" | grep -c testing.F)" != 1 ]; then
	echo "func $2 is not in exactly one place in $dir" >&2
	exit 1
fi
if [ "$(sed -n 's/^package //p' "$dir"/*.go | sort -u | wc -l)" != 1 ]; then
	echo "the files in $dir belong to several packages" >&2
	exit 1
fi
if [ -n "$COMPILE" ]; then
	for file in "$dir"/*_test.go; do [ ! -e "$file" ] || mv "$file" "${file%_test.go}_libFuzzer.go"; done
	go build "./$dir"
	for file in "$dir"/*_libFuzzer.go; do [ ! -e "$file" ] || mv "$file" "${file%_libFuzzer.go}_test.go"; done
fi
`

// copyTree copies the files of the repository, as they are now, to a directory.
const copyTree = `git ls-files -z --cached --others --exclude-standard | while read -rd '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done |
	tar --null -T - -cf - | tar -xf - -C "$1"`

// TestOSSFuzz runs the build script for OSS-Fuzz on a copy of the repository. It builds every
// fuzzer once, and each has the form that OSS-Fuzz takes.
func TestOSSFuzz(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	src, bin := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(src, "nodens"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := exec.Command("bash", "-c", copyTree, "bash", filepath.Join(src, "nodens"))
	files.Dir = root
	if out, err := files.CombinedOutput(); err != nil {
		t.Fatalf("copying the repository: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(bin, "compile_native_go_fuzzer_v2"), []byte(builder), 0o755); err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(bin, "built")
	cmd := exec.Command("bash", "-eu", filepath.Join(root, "test/oss-fuzz/build.sh"))
	cmd.Env = append(os.Environ(), "SRC="+src, "BUILT="+built, "PATH="+bin+":"+os.Getenv("PATH"), "COMPILE="+soak.Choose("", "1"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out.String())
	}
	text, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		got = append(got, strings.TrimSuffix(words[0], "/external")+" "+words[1])
	}
	all, err := find(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		want = append(want, f.Name()+" "+f.name)
	}
	want = slices.DeleteFunc(want, func(f string) bool { return slices.Contains(notOnOSSFuzz, f) })
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the fuzzers in test/oss-fuzz/build.sh (-want +got):\n%s", diff)
	}
}
