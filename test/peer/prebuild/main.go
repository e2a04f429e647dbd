// Command prebuild builds other projects' programs before tests need them:
//
//	go run ./test/peer/prebuild [-path] [NAME...]
//
// A NAME is a program, or a set of programs: test for those of make test, e2e for those of
// make e2e. Without names, it builds both sets. The order is the one in which a run needs the
// programs. Each program gets one line: the seconds it took, the CPU seconds, built or kept
// or FAIL, and its name. With -path, only the paths of the programs are printed.
//
// The builds run at a lower priority than tests. At the lowest one, tests that wait for a program exceeded their time in
// runs where none was kept. A test that needs a program which is being built waits for it. A program that fails does not stop the others. The exit code is 0 if all programs
// are there. SIGINT and SIGTERM stop the builds, and so does the end of the parent process;
// what is complete stays.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
)

// sets are the programs by their set, in the order in which a run needs them. etcd comes
// before kube-apiserver, which takes longest, because it is quick and shares packages with it.
var sets = map[string][]string{
	"test": {"etcd", "kube-apiserver", "coredns", "helm", "kubectl", "kube-controller-manager", "kube-scheduler"},
	"e2e":  {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns", "helm"},
}

func main() {
	paths := flag.Bool("path", false, "print the paths of the programs only")
	flag.Parse()
	// Children inherit the priority of the thread that starts them, which is this one.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := errors.Join(settle(), prebuild(ctx, programs(flag.Args()), *paths, os.Stdout))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settle lowers the thread's priority and makes the process end with its parent: `go run` does
// not pass SIGTERM on.
func settle() error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 5); err != nil {
		return fmt.Errorf("lowering the priority: %w", err)
	}
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
}

// programs replaces the sets in names by their programs. Each program comes once.
func programs(names []string) []string {
	if len(names) == 0 {
		names = []string{"test", "e2e"}
	}
	var list []string
	for _, name := range names {
		set, ok := sets[name]
		if !ok {
			set = []string{name}
		}
		for _, p := range set {
			if !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	return list
}

// prebuild builds the programs one after the other: each build uses all processors.
func prebuild(ctx context.Context, names []string, paths bool, out io.Writer) error {
	var errs []error
	for _, name := range names {
		began, cpuBefore := time.Now(), childrenCPU()
		path, built, err := peer.Tool(ctx, name)
		if ctx.Err() != nil {
			return errors.Join(append(errs, fmt.Errorf("stopped at %s", name))...)
		}
		verdict := "kept"
		switch {
		case err != nil:
			errs = append(errs, err)
			verdict = "FAIL"
		case built:
			verdict = "built"
		}
		line := path
		if !paths {
			line = fmt.Sprintf("%6.1f s  %6.1f s CPU  %-5s  %s", time.Since(began).Seconds(), (childrenCPU() - cpuBefore).Seconds(), verdict, name)
		} else if err != nil {
			continue
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// childrenCPU returns the processor time of all child processes that have ended. Those are go
// commands and their compilers.
func childrenCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
