package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// execArg as the only flag makes this program run a test binary, whose path and arguments follow, and
// append the directory that it runs in and its CPU time in nanoseconds to the file that cpuVariable
// names. It is what `go test -exec` runs: the go command does not tell the CPU time of each package.
const (
	execArg     = "-exec-test"
	cpuVariable = "NODENS_TEST_CPU"
)

// execTest runs the test binary and returns its exit code.
func execTest(args []string) int {
	runtime.LockOSThread()                    // Pdeathsig acts when the thread ends
	cmd := exec.Command(args[0], args[1:]...) //nolint:gosec // the go command chooses the program
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The go command sends SIGQUIT to a test that exceeds its limit. An interrupt reaches the whole
	// process group.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		return 1
	}
	go func() {
		for s := range signals {
			if s != syscall.SIGINT {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run:", err)
		return 1
	}
	p := cmd.ProcessState
	if err := appendCPUTime(os.Getenv(cpuVariable), p.UserTime()+p.SystemTime()); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		return 1
	}
	if code := p.ExitCode(); code >= 0 {
		return code
	}
	return 2 // a signal ended it
}

// appendCPUTime adds a line for the working directory to the file.
func appendCPUTime(path string, cpu time.Duration) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Clean(path), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d %s\n", cpu, dir)
	return errors.Join(err, f.Close())
}

// readCPUTimes returns the CPU time of each package that the file has lines for. root is the directory
// of the repository.
func readCPUTimes(path, root string) (map[string]time.Duration, error) {
	f, err := os.Open(filepath.Clean(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no test binary ran
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	times := make(map[string]time.Duration)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		number, dir, _ := strings.Cut(lines.Text(), " ")
		cpu, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		name, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		times[module+filepath.ToSlash(name)] += time.Duration(cpu)
	}
	return times, lines.Err()
}
