// Package machine pins processes to cores and reads what the kernel counts about them: CPU time,
// context switches, memory, and the idle time of cores. It also describes the machine.
package machine

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

// Cores are numbers of CPUs.
type Cores []int

// List is the form that taskset takes.
func (c Cores) List() string {
	parts := make([]string, len(c))
	for i, n := range c {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ",")
}

// ErrCores says that the machine is too small.
var ErrCores = errors.New("a benchmark takes two cores: one for the server, one for the load generator")

// SplitCores divides the CPUs that this process may use: the first is the server's,
// the others are the load generator's.
func SplitCores() (server, load Cores, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, fmt.Errorf("reading the CPUs this process may use: %w", err)
	}
	var all Cores
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	if len(all) < 2 {
		return nil, nil, ErrCores
	}
	return all[:1], all[1:], nil
}

// PinSelf pins every thread of this process to the cores, and with them what it
// starts from now on.
func PinSelf(on Cores) error {
	if err := Pin("self", on); err != nil {
		return fmt.Errorf("pinning the harness: %w", err)
	}
	return nil
}

// Pin pins every thread of the process, whose id may be "self", to the cores.
// Threads that are made meanwhile inherit from one that may not be pinned yet, so it
// looks again until none was.
func Pin(pid string, on Cores) error {
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
				return fmt.Errorf("pinning process %s to the cores %s: %w", pid, on.List(), err)
			}
		}
	}
	return nil
}

// Fact is a line about what was measured, and with what.
type Fact struct{ Name, Value string }

// Describe tells what the numbers depend on besides the programs.
func Describe() []Fact {
	return []Fact{
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

// LoadAverage is the number of threads that ran or wanted to, over the last
// minute.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
