// These tests use loadProgram and programObjects, which are not exported.

package kernelpath

// Inside the package: the program objects are not exported.

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Limits of what the kernel's verifier needs for a program. It rejects programs at a
// million instructions and at 512 bytes of stack. Versions count differently, older ones up
// to ten times as much; half of the instructions and three quarters of the stack leave room
// for versions that are not tested.
const (
	maxSteps = 500_000
	maxStack = 384
)

var (
	steps = regexp.MustCompile(`processed (\d+) insns`)
	stack = regexp.MustCompile(`stack depth ([0-9+]+)`)
)

// TestVerifier loads the programs without attaching them and limits the verifier's work.
// test/kernels also runs it on kernels without tcx, whose verifiers know less than those of
// any kernel with tcx.
func TestVerifier(t *testing.T) {
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	var o programObjects
	load := func(level ebpf.LogLevel) error {
		return spec.LoadAndAssign(&o, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: level}})
	}
	err = load(ebpf.LogLevelStats)
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) && errors.As(load(ebpf.LogLevelBranch), &refused) {
		// The end of the log; all of it is thousands of lines.
		t.Log(strings.Join(refused.Log[max(0, len(refused.Log)-100):], "\n"))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for name, p := range map[string]*ebpf.Program{"answer": o.NodensAnswer, "watch": o.NodensWatch, "count": o.NodensCount, "admit": o.NodensAdmit} {
		did, deep := steps.FindStringSubmatch(p.VerifierLog), stack.FindStringSubmatch(p.VerifierLog)
		if did == nil || deep == nil {
			t.Fatalf("%s: the verifier says neither its steps nor the stack's depth:\n%s", name, p.VerifierLog)
		}
		n, _ := strconv.Atoi(did[1])
		bytes := 0
		for each := range strings.SplitSeq(deep[1], "+") {
			b, _ := strconv.Atoi(each)
			bytes += b
		}
		t.Logf("%s: %d instructions looked at, %d bytes of stack", name, n, bytes)
		if n == 0 || n > maxSteps || bytes == 0 || bytes > maxStack {
			t.Errorf("%s: %d instructions, %d bytes of stack: more than %d, or than %d", name, n, bytes, maxSteps, maxStack)
		}
	}
}
