package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
)

// MeasurePrograms has the pod ask for so long, again if too many queries are lost. The sample has the CPU time that the kernel
// programs of the agent with this process ID took, see [ProgramTime]. Queries that the agent answers are counted, too: they are a
// few in a second.
func (d *PodBench) MeasurePrograms(ctx context.Context, pid int, shape harness.LoadShape, length time.Duration) (s harness.Sample, err error) {
	for range harness.MaxAttempts {
		before, err := ProgramTime(pid)
		if err != nil {
			return s, err
		}
		if s.LoadResult, err = d.Ask(ctx, shape, length); err != nil {
			return s, err
		}
		after, err := ProgramTime(pid)
		if err != nil {
			return s, err
		}
		s.CPU = after - before
		if err = s.Check(dns.RcodeToString[dns.RcodeSuccess]); err == nil {
			return s, nil
		}
	}
	return s, err
}

// ProgramTime returns how long the programs of an agent have run in the kernel, if its statistics are on
// ([ebpf.EnableStats]).
func ProgramTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0, err
	}
	programs := make(map[uint64]uint64) // by number: a program may have several descriptors
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was closed
		}
		if err != nil {
			return 0, err
		}
		if took, ok := field(text, "run_time_ns:"); ok {
			id, _ := field(text, "prog_id:")
			programs[id] = took
		}
	}
	if len(programs) == 0 {
		return 0, fmt.Errorf("the agent with the process ID %d has no program in the kernel", pid)
	}
	var all uint64
	for _, took := range programs {
		all += took
	}
	return time.Duration(all), nil
}

// field returns the number of a line of fdinfo; false if there is none.
func field(text []byte, key string) (uint64, bool) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(key)); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
