// Package readers measures the section about many readers: the time of a hit when all of them are asked for the
// same name, with and without the replies that readers keep, and how evenly a few busy clients load them.
//
// The measurements are the benchmarks HotName and Spread of package server, which use what that package does not
// export. Their binary is built once and run once in each round, so that the cases are measured in turn.
package readers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
)

// cores are the numbers of readers that are asked at the same time.
const cores = "1,2,16"

// benchmarks are the names of the benchmarks without "Benchmark", by the folder of their package.
var benchmarks = map[string]string{"server": "HotName", "server/udp": "Spread"}

// Measure measures. It stops everything that it started before it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	if p.Before != "" {
		return nil, errors.New("-hotname has no -before: the benchmarks of the two commits may measure something else")
	}
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	root, err := peer.Root()
	if err != nil {
		return nil, err
	}
	for folder := range benchmarks {
		build := exec.CommandContext(ctx, "go", "test", "-c", "-o", filepath.Join(dir, filepath.Base(folder)), "./"+folder)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the benchmarks of %s: %w\n%s", folder, err, out)
		}
	}
	r := newReport(&harness.Report{Plan: p, Date: time.Now(), Commit: harness.Commit(), Facts: machine.Describe(), LoadBefore: machine.LoadAverage()})
	for n := range p.Rounds {
		for folder, name := range benchmarks {
			run := exec.CommandContext(ctx, filepath.Join(dir, filepath.Base(folder)), "-test.run", "^$", "-test.bench", "^Benchmark"+name+"$", "-test.cpu", cores, "-test.benchtime", p.Length.String()) //nolint:gosec // built above
			run.Dir = filepath.Join(root, folder)
			out, err := run.CombinedOutput()
			if err != nil {
				return nil, fmt.Errorf("round %d: %w\n%s", n+1, err, out)
			}
			if err := r.add(out); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(p.Progress, "round %d of %d: %d benchmarks\n", n+1, p.Rounds, len(r.results(took)))
	}
	r.NoteLoad()
	return r, nil
}

// result is a line of a benchmark: its name, the number of its runs, and its values.
var result = regexp.MustCompile(`^Benchmark(\S+)\s+\d+\s+(.*)$`)

// add adds the results in the output of the benchmarks.
func (r *Report) add(output []byte) error {
	s := bufio.NewScanner(bytes.NewReader(output))
	for s.Scan() {
		m := result.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		fields := strings.Fields(m[2])
		for i := 0; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return fmt.Errorf("a value of %s: %w", m[1], err)
			}
			of, at := r.results(fields[i+1]), harness.Cell{Server: m[1]}
			of[at] = append(of[at], v)
		}
	}
	return s.Err()
}
