package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cores are numbers of CPUs.
type cores []int

// list is the form that taskset takes.
func (c cores) list() string {
	parts := make([]string, len(c))
	for i, n := range c {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ",")
}

// errCores says that the machine is too small.
var errCores = errors.New("a benchmark takes two cores: one for the server, one for the load generator")

// splitCores divides the CPUs that this process may use: the first is the server's,
// the others are the load generator's.
func splitCores() (server, load cores, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, fmt.Errorf("reading the CPUs this process may use: %w", err)
	}
	var all cores
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	if len(all) < 2 {
		return nil, nil, errCores
	}
	return all[:1], all[1:], nil
}

// pinSelf pins every thread of this process to the cores, and with them what it
// starts from now on.
func pinSelf(on cores) error {
	if err := pin("self", on); err != nil {
		return fmt.Errorf("pinning the harness: %w", err)
	}
	return nil
}

// pin pins every thread of the process, whose id may be "self", to the cores.
// Threads that are made meanwhile inherit from one that may not be pinned yet, so it
// looks again until none was.
func pin(pid string, on cores) error {
	var set unix.CPUSet
	for _, n := range on {
		set.Set(n)
	}
	done := map[string]bool{}
	for fresh := true; fresh; {
		fresh = false
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(filepath.Base(t))
			if done[t] || err != nil {
				continue
			}
			done[t], fresh = true, true
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pinning process %s to the cores %s: %w", pid, on.list(), err)
			}
		}
	}
	return nil
}

// fact is a line about what was measured, and with what.
type fact struct{ name, value string }

// describeMachine tells what the numbers depend on besides the programs.
func describeMachine() []fact {
	return []fact{
		{"CPU", fmt.Sprintf("%d × %s", runtime.NumCPU(), model())},
		{"kernel", kernel()},
		{"Go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
	}
}

func model() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// loadAverage is the number of threads that ran or wanted to, over the last
// minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
