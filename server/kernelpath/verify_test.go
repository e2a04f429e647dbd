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
	stack = regexp.MustCompile(`stack depth (?:max )?([0-9+]+)`)
)

// verifierWork returns what the verifier's statistics say: how many instructions it has looked at, and how
// many bytes of stack the program takes with those that it calls; zeros if they say neither.
func verifierWork(log string) (instructions, bytes int) {
	did, deep := steps.FindStringSubmatch(log), stack.FindStringSubmatch(log)
	if did == nil || deep == nil {
		return 0, 0
	}
	instructions, _ = strconv.Atoi(did[1])
	for each := range strings.SplitSeq(deep[1], "+") {
		b, _ := strconv.Atoi(each)
		bytes += b
	}
	return instructions, bytes
}

// TestVerifierWork: the forms of Linux 6.1 to 6.18, and of 7.3.
func TestVerifierWork(t *testing.T) {
	for _, log := range []string{
		"verification time 41 usec\nstack depth 312+8\nprocessed 36438 insns (limit 1000000) max_states_per_insn 15",
		"stack depth max 320\nsubprog 0 (nodens_answer) main insns_self 36438 insns_total 36438 stack 312\nprocessed 36438 insns (limit 1000000)",
	} {
		if n, bytes := verifierWork(log); n != 36438 || bytes != 320 {
			t.Errorf("%d instructions and %d bytes of stack in:\n%s", n, bytes, log)
		}
	}
	if n, bytes := verifierWork("processed many insns"); n != 0 || bytes != 0 {
		t.Errorf("%d instructions and %d bytes of stack where nothing is said", n, bytes)
	}
}

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
		n, bytes := verifierWork(p.VerifierLog)
		if n == 0 {
			t.Fatalf("%s: the verifier says neither its steps nor the stack's depth:\n%s", name, p.VerifierLog)
		}
		t.Logf("%s: %d instructions looked at, %d bytes of stack", name, n, bytes)
		if n > maxSteps || bytes == 0 || bytes > maxStack {
			t.Errorf("%s: %d instructions, %d bytes of stack: more than %d, or than %d", name, n, bytes, maxSteps, maxStack)
		}
	}
}
