package kernelpath_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestObject runs the command in generate.go and compares the result with the committed
// files.
func TestObject(t *testing.T) {
	if out, err := exec.Command("sh", "../../test/install.sh", "clang-14", "llvm-strip-14").CombinedOutput(); err != nil {
		t.Skipf("without clang: %s", out)
	}
	names := []string{"program_bpfel.go", "program_bpfel.o"}
	dir := t.TempDir()
	for _, name := range []string{"generate.go", "bpf/answer.c", "bpf/bypass.h", "bpf/client.h", "bpf/kernel.h", "bpf/limit.h", "bpf/memory.h"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(filepath.Join(dir, "go.mod"), module, 0o644)
	_ = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644)
	cmd := exec.Command("go", "generate", "generate.go")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go generate: %v\n%s", err, out)
	}
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go generate makes; run it in server/kernelpath and commit what it makes", name)
		}
	}
}
