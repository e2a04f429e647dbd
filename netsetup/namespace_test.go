package netsetup

// Inside the package: other tests inside use these helpers.

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// namespaceEnv marks a process that runs a single test in a network namespace of
// its own.
const namespaceEnv = "NODENS_TEST_NETSETUP_NAMESPACE"

// iptablesModes are the two builds of iptables that nodes have.
var iptablesModes = []struct{ name, program string }{
	{"nft", "xtables-nft-multi"},
	{"legacy", "xtables-legacy-multi"},
}

// inNamespace runs body in a process with a network namespace of its own, once
// with each build of iptables. The process is this test binary again, told to run
// the calling test only; the namespace, and all that body leaves in it, goes when
// the process ends, however it ends. Tests that do this run side by side: they wait for
// other programs most of the time, and share nothing.
func inNamespace(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(namespaceEnv) != "" {
		body(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	for _, program := range append(iptablesNames(), "ip") {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs the programs of iptables and iproute2:", err)
		}
	}
	t.Parallel()
	for _, b := range iptablesModes {
		t.Run(b.name, func(t *testing.T) {
			program, err := exec.LookPath(b.program)
			if err != nil {
				t.Skip("this build of iptables is not installed:", err)
			}
			runChild(t, program)
		})
	}
}

// iptablesNames are the names by which a build of iptables is called.
func iptablesNames() []string {
	return []string{"iptables", "ip6tables", "iptables-save", "ip6tables-save", "iptables-restore", "ip6tables-restore"}
}

// runChild runs the test t is part of in a new process and namespace, where
// iptables and its relatives are program.
func runChild(t *testing.T, program string) {
	dir := t.TempDir()
	for _, name := range iptablesNames() {
		check.NoError(t, os.Symlink(program, filepath.Join(dir, name)))
	}
	rerunInNetns(t, namespaceEnv+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "XTABLES_LOCKFILE="+filepath.Join(dir, "lock"))
}

// childLimit ends a child that hangs. The longest takes some seconds on a machine that
// does nothing else.
const childLimit = 8 * time.Minute

// rerunInNetns runs the test t is part of, alone, in a new process and namespace with these
// variables set, and fails or skips t as that test does.
func rerunInNetns(t *testing.T, env ...string) {
	t.Helper()
	rerun(t, syscall.CLONE_NEWNET, env...)
}

// rerun is apart with other new namespaces.
func rerun(t *testing.T, namespaces uintptr, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), childLimit)
	defer cancel()
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.count=1", "-test.run=^"+test+"$")
	cmd.Args = append(cmd.Args, coverageFlag()...)
	// A child that is killed leaves its temporary files.
	cmd.Env = append(append(os.Environ(), "TMPDIR="+t.TempDir()), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out

	// The signal at our death is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the namespace: %v\n%s", err, out.String())
	}
	if strings.Contains(out.String(), "--- SKIP: "+test) {
		t.Skip(out.String())
	}
	if !strings.Contains(out.String(), "--- PASS: "+test) {
		t.Fatalf("the test did not run in the namespace:\n%s", out.String())
	}
	t.Log(out.String())
}

// run runs a program to its end and returns what it prints.
func run(t *testing.T, words ...string) string {
	t.Helper()
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

// changingOutput is what two dumps of an unchanged node differ in: the times in
// iptables-save's comments and the packet counters of the chains.
var changingOutput = regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]$`)

// dump returns the namespace's links, addresses and rules.
func dumpNode(t *testing.T) string {
	t.Helper()
	return run(t, "ip", "addr") + dumpRules(t, IPv4) + dumpRules(t, IPv6)
}

func dumpRules(t *testing.T, f Family) string {
	t.Helper()
	return changingOutput.ReplaceAllString(run(t, f.String()+"-save"), "")
}

// addForeignObjects gives the namespace what a node has: lo up, rules and addresses of
// others, so that every table and chain exists already.
func addForeignObjects(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "addr", "add", "192.0.2.7/32", "dev", "lo")
	for _, tool := range []string{"iptables", "ip6tables"} {
		run(t, tool, "-w", "-t", "filter", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
		run(t, tool, "-w", "-t", "filter", "-A", "OUTPUT", "-p", "udp", "--dport", "53", "-j", "ACCEPT",
			"-m", "comment", "--comment", "NodeLocal DNS Cache: allow DNS traffic")
		run(t, tool, "-w", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "53", "-j", "NOTRACK")
		run(t, tool, "-w", "-t", "raw", "-A", "OUTPUT", "-p", "udp", "--dport", "4789", "-j", "NOTRACK")
		run(t, tool, "-w", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "--dport", "5000", "-j", "ACCEPT")
		run(t, tool, "-w", "-t", "nat", "-A", "OUTPUT", "-p", "udp", "--dport", "5000", "-j", "ACCEPT")
		run(t, tool, "-w", "-t", "nat", "-A", "POSTROUTING", "-p", "udp", "--dport", "5000", "-j", "ACCEPT")
	}
}
