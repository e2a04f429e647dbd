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

// copyTree copies the files of the repository, as they are now, and returns the new root.
func copyTree(t *testing.T, root string) string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		from := filepath.Join(root, name)
		info, err := os.Stat(from)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted, or a link
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestOSSFuzz runs the build script for OSS-Fuzz on a copy of the repository. It builds every
// fuzzer once, and each has the form that OSS-Fuzz takes.
func TestOSSFuzz(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	src, bin := t.TempDir(), t.TempDir()
	if err := os.Rename(copyTree(t, root), filepath.Join(src, "nodens")); err != nil {
		t.Fatal(err)
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
