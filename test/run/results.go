package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is a line of `go test -json` (see go doc cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a build's output
	FailedBuild                   string
	Elapsed                       float64 // seconds
}

// testID identifies a test of one stage. Test is empty for the package as a whole.
type testID struct{ stage, pkg, test string }

// outcome is how a test or package ended.
type outcome struct {
	action  string // pass, fail or skip
	elapsed time.Duration
	reason  string // of a skip
}

// count counts tests without subtests, and subtests without subtests of their own.
type count struct{ passed, failed, skipped int }

func (c *count) add(action string) {
	switch action {
	case "fail":
		c.failed++
	case "skip":
		c.skipped++
	default:
		c.passed++
	}
}

// results collects the events of all stages and prints failures as they come. It is safe for
// concurrent use.
type results struct {
	out io.Writer // written to with mu held

	mu       sync.Mutex
	output   map[testID]*strings.Builder // of what has not ended
	builds   map[string]*strings.Builder // by import path
	outcomes map[testID]outcome
	cpu      map[testID]time.Duration // of packages
	order    []testID                 // of the ends
	parents  map[testID]bool          // tests that have subtests
	done     map[string]int           // top-level tests that have ended, by stage
	failures int
}

func newResults(out io.Writer) *results {
	return &results{
		out: out, output: make(map[testID]*strings.Builder), builds: make(map[string]*strings.Builder),
		outcomes: make(map[testID]outcome), cpu: make(map[testID]time.Duration), parents: make(map[testID]bool), done: make(map[string]int),
	}
}

// read adds the events of a stage until in ends. Lines that are not events are printed: they
// come from the go command itself.
func (r *results) read(stage string, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20) // a failed comparison may print a whole rule set
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			r.printf("%s\n", lines.Text())
			continue
		}
		r.add(stage, e)
	}
	return lines.Err()
}

// printf prints a line of its own.
func (r *results) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

func (r *results) add(stage string, e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := testID{stage, e.Package, e.Test}
	switch e.Action {
	case "build-output":
		appendText(r.builds, e.ImportPath, e.Output)
	case "output":
		appendText(r.output, id, e.Output)
	case "pass", "fail", "skip":
		r.end(id, e)
	}
}

// end records how a test or package ended, and prints a failure. r.mu is held.
func (r *results) end(id testID, e event) {
	o := outcome{action: e.Action, elapsed: time.Duration(e.Elapsed * float64(time.Second))}
	text := ""
	if b := r.output[id]; b != nil {
		text = b.String()
		delete(r.output, id)
	}
	if e.Action == "skip" {
		o.reason = skipReason(text)
	}
	r.outcomes[id] = o
	r.order = append(r.order, id)
	if i := strings.LastIndexByte(id.test, '/'); i > 0 {
		r.parents[testID{id.stage, id.pkg, id.test[:i]}] = true
	} else if strings.HasPrefix(id.test, "Test") {
		r.done[id.stage]++
	}
	if e.Action == "fail" {
		r.printFailure(id, e, text)
	}
}

// printFailure prints the output of a failed test. A package that does not build, panics or
// exceeds its time limit has no test to blame. r.mu is held.
func (r *results) printFailure(id testID, e event, text string) {
	switch {
	case e.FailedBuild != "":
		if b := r.builds[e.FailedBuild]; b != nil {
			text = b.String()
		}
		r.failures++
		fmt.Fprintf(r.out, "\n--- %s does not build\n%s", id.pkg, text)
	case id.test != "":
		if !r.parents[id] {
			r.failures++
		}
		fmt.Fprintf(r.out, "\n--- FAIL %s %s\n%s", id.pkg, id.test, text)
	case !r.failedTest(id.stage, id.pkg):
		r.failures++
		fmt.Fprintf(r.out, "\n--- FAIL %s\n%s%s", id.pkg, r.unfinished(id.stage, id.pkg), text)
	}
}

// unfinished returns the output of the package's tests that have not ended: of those that panicked
// or hung. r.mu is held.
func (r *results) unfinished(stage, pkg string) string {
	var text strings.Builder
	for id, b := range r.output {
		if id.stage == stage && id.pkg == pkg && id.test != "" {
			text.WriteString(b.String())
			delete(r.output, id)
		}
	}
	return text.String()
}

// failedTest reports whether a test of the package failed. r.mu is held.
func (r *results) failedTest(stage, pkg string) bool {
	for id, o := range r.outcomes {
		if id.stage == stage && id.pkg == pkg && id.test != "" && o.action == "fail" {
			return true
		}
	}
	return false
}

// progress returns how many top-level tests of each stage have ended, and how many tests failed.
func (r *results) progress() (done map[string]int, failures int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.done), r.failures
}

// addCPUTimes records the CPU times of a stage's packages, by import path.
func (r *results) addCPUTimes(stage string, times map[string]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pkg, cpu := range times {
		r.cpu[testID{stage: stage, pkg: pkg}] = cpu
	}
}

// check records a stage without events as one check.
func (r *results) check(stage string, took time.Duration, err error, output string) {
	e := event{Action: "pass", Package: stage, Test: stage, Elapsed: took.Seconds()}
	if err != nil {
		e.Action = "fail"
		r.add(stage, event{Action: "output", Package: stage, Test: stage, Output: fmt.Sprintf("%s%v\n", output, err)})
	}
	r.add(stage, e)
}

// printSummary prints the skipped tests, a line for each package, the slowest tests and the
// totals. It reports whether tests ran and none failed.
func (r *results) printSummary(slowest int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.order {
		if o := r.outcomes[id]; o.action == "skip" && id.test != "" {
			fmt.Fprintf(r.out, "skipped %s %s: %s\n", id.pkg, id.test, o.reason)
		}
	}
	total := r.printPackages()
	r.printSlowest(slowest)
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", total.passed, r.failures, total.skipped)
	return r.failures == 0 && total.passed > 0
}

// printPackages prints a line for each package of each stage, and returns the counts of all.
func (r *results) printPackages() (total count) {
	counts := make(map[testID]*count)
	for _, id := range r.order {
		pkg := testID{stage: id.stage, pkg: id.pkg}
		if counts[pkg] == nil {
			counts[pkg] = new(count)
		}
		if id.test != "" && !r.parents[id] {
			counts[pkg].add(r.outcomes[id].action)
			total.add(r.outcomes[id].action)
		}
	}
	fmt.Fprintf(r.out, "\n%-20s %-52s %7s %7s %7s %9s %9s\n", "stage", "package", "passed", "failed", "skipped", "seconds", "CPU s")
	byName := func(a, b testID) int { return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(a.pkg, b.pkg)) }
	for _, id := range slices.SortedFunc(maps.Keys(counts), byName) {
		n := counts[id]
		cpu := "" // known for packages that the run started itself
		if d := r.cpu[id]; d > 0 {
			cpu = fmt.Sprintf("%.1f", d.Seconds())
		}
		fmt.Fprintf(r.out, "%-20s %-52s %7d %7d %7d %9.1f %9s\n", id.stage, id.pkg, n.passed, n.failed, n.skipped, r.outcomes[id].elapsed.Seconds(), cpu)
	}
	return total
}

// printSlowest prints the n tests that took longest, without subtests.
func (r *results) printSlowest(n int) {
	var tests []testID
	for _, id := range r.order {
		if id.test != "" && !strings.Contains(id.test, "/") {
			tests = append(tests, id)
		}
	}
	slices.SortStableFunc(tests, func(a, b testID) int { return cmp.Compare(r.outcomes[b].elapsed, r.outcomes[a].elapsed) })
	fmt.Fprintf(r.out, "\n%-9s slowest tests\n", "seconds")
	for _, id := range tests[:min(n, len(tests))] {
		fmt.Fprintf(r.out, "%9.1f %s %s (%s)\n", r.outcomes[id].elapsed.Seconds(), id.pkg, id.test, id.stage)
	}
}

func appendText[K comparable](m map[K]*strings.Builder, k K, s string) {
	if m[k] == nil {
		m[k] = new(strings.Builder)
	}
	m[k].WriteString(s)
}

// skipReason returns the last line of a skipped test's output that comes from its code.
func skipReason(output string) string {
	reason := "no reason given"
	for line := range strings.Lines(output) {
		_, at, ok := strings.Cut(line, ".go:")
		if _, text, found := strings.Cut(at, ": "); ok && found && !strings.HasPrefix(text, "===") {
			reason = strings.TrimSpace(text)
		}
	}
	return reason
}
