package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ProcStat is what the kernel says about a process at one moment.
type ProcStat struct {
	// CPU is the CPU time of all threads, ended ones included, in user and kernel
	// mode.
	CPU time.Duration
	// User and Kernel are the same time in clock ticks: their ratio is exact, their sum
	// is coarse.
	User, Kernel uint64
	// Switches is how often its living threads have gone to sleep of their own
	// accord, and Preemptions how often the kernel has given their CPU to another thread.
	Switches, Preemptions uint64
	// RSS is the resident memory in bytes, Peak its maximum since ResetPeak. Anonymous is the part of
	// RSS that no file has.
	RSS, Peak, Anonymous uint64
}

// ReadProcStat reads the values of the process.
func ReadProcStat(pid int) (ProcStat, error) {
	var r ProcStat
	var err error
	if r.CPU, err = CPUClock(pid); err != nil {
		return r, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return r, err
	}
	if r.User, r.Kernel, err = parseStat(stat); err != nil {
		return r, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return r, err
	}
	// The kernel says kB and means KiB.
	r.RSS, r.Peak, r.Anonymous = field(status, "VmRSS:")<<10, field(status, "VmHWM:")<<10, field(status, "RssAnon:")<<10
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return r, err
	}
	for _, path := range tasks {
		// A thread may have ended since it was listed.
		if status, err := os.ReadFile(path); err == nil {
			r.Switches += field(status, "voluntary_ctxt_switches:")
			r.Preemptions += field(status, "nonvoluntary_ctxt_switches:")
		}
	}
	return r, nil
}

// ResetPeak sets the peak of the process to its current memory.
func ResetPeak(pid int) error {
	const peak = "5" // proc(5), clear_refs
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peak), 0)
}

// CPUClock reads the process's CPU clock, whose unit is the nanosecond; the
// ticks of /proc/PID/stat are ten milliseconds, more than a server uses in a
// second at a low rate.
func CPUClock(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3): the inverted id above three bits, of which 2 says
	// that the scheduler's count is meant and that it is a process's.
	const scheduler = 2
	clock := int32(^pid)<<3 | scheduler
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("reading the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

var errStat = errors.New("not what proc(5) describes")

// parseStat returns the ticks in user and in kernel mode of a /proc/PID/stat.
func parseStat(text []byte) (user, kernel uint64, err error) {
	// The second field is the program's name in parentheses, which may itself
	// hold spaces and parentheses; the fields after it are numbers.
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return 0, 0, errStat
	}
	f := strings.Fields(string(text[i+1:]))
	const utime, stime = 14 - 3, 15 - 3 // counted from the third field
	if len(f) <= stime {
		return 0, 0, errStat
	}
	user, err = strconv.ParseUint(f[utime], 10, 64)
	if err != nil {
		return 0, 0, errors.Join(errStat, err)
	}
	kernel, err = strconv.ParseUint(f[stime], 10, 64)
	if err != nil {
		return 0, 0, errors.Join(errStat, err)
	}
	return user, kernel, nil
}

// IdleTime is how long the cores have had nothing to do since the machine started.
func IdleTime(of Cores) (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, n := range of {
		d, err := parseIdle(text, n)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		sum += d
	}
	return sum, nil
}

// Tick is the unit of /proc/stat: USER_HZ is 100 on every architecture that Go
// runs on.
const Tick = time.Second / 100

// parseIdle reads the idle time of a core, waiting for a disk included, from a
// /proc/stat.
func parseIdle(text []byte, core int) (time.Duration, error) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		const idle, iowait = 4, 5
		if len(f) <= iowait || f[0] != "cpu"+strconv.Itoa(core) {
			continue
		}
		a, err := strconv.ParseUint(f[idle], 10, 64)
		b, err2 := strconv.ParseUint(f[iowait], 10, 64)
		if err := errors.Join(err, err2); err != nil {
			return 0, errors.Join(errStat, err)
		}
		return time.Duration(a+b) * Tick, nil
	}
	return 0, errStat
}

// field returns the number behind the key that begins a line, 0 if there is none.
func field(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			f := bytes.Fields(rest)
			if len(f) == 0 {
				return 0
			}
			n, err := strconv.ParseUint(string(f[0]), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// DropPageCache has the kernel read the file from disk when it is used next. How much of a
// program counts as resident depends on how its file came into the page cache: pages of a
// file that was just copied are mapped by the megabyte, those that a start on a node reads
// from disk a few at a time.
func DropPageCache(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
