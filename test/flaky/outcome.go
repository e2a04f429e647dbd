package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/gotest"
)

// outcome collects the events of one run of a test binary.
type outcome struct {
	pkg *testPackage
	// active are the top-level tests that have begun, are not paused and have not ended, with
	// the time since when.
	active  map[string]time.Time
	outputs map[string]string // of what has not ended, by test; "" is the process itself
	failed  []string          // tests and subtests
	runs    map[string]int    // of top-level tests
}

// maxOutput bounds what is kept of a test's output. It is the end that tells why it failed.
const maxOutput = 16 << 10

func newOutcome(p *testPackage) *outcome {
	return &outcome{pkg: p, active: make(map[string]time.Time), outputs: make(map[string]string), runs: make(map[string]int)}
}

func (o *outcome) add(e gotest.Event) {
	top, _, isSubtest := strings.Cut(e.Test, "/")
	switch e.Action {
	case "run", "cont":
		if !isSubtest {
			o.active[top] = e.Time
		}
	case "pause":
		delete(o.active, e.Test)
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // it announces a test
			text := o.outputs[e.Test] + e.Output
			o.outputs[e.Test] = text[max(0, len(text)-maxOutput):]
		}
	case "pass", "fail", "skip":
		if e.Test != "" { // the process's exit code tells more than its event
			o.end(e, top, isSubtest)
		}
	}
}

// end records the end of a test or subtest. A test fails with its subtests, which is worth telling if it says more
// than the verdict.
func (o *outcome) end(e gotest.Event, top string, isSubtest bool) {
	text := o.outputs[e.Test]
	delete(o.outputs, e.Test)
	below := func(name string) bool { return strings.HasPrefix(name, e.Test+"/") }
	if e.Action == "fail" && (!slices.ContainsFunc(o.failed, below) || saysMore(text)) {
		o.fail(e.Test, text)
	}
	if !isSubtest {
		elapsed := max(time.Duration(e.Elapsed*float64(time.Second)), e.Time.Sub(o.active[top])) // with parallel subtests
		delete(o.active, top)
		o.count(top, elapsed, e.Action == "skip")
	}
}

// finish records the end of the process with err. If tests have not ended, the one that has failed
// with a panic is to blame, or else all that ran at that time.
func (o *outcome) finish(err error) {
	text := fmt.Sprintf("%s\n%v\n", o.outputs[""], err)
	active := slices.Sorted(maps.Keys(o.active))
	for _, name := range active {
		if strings.Contains(o.outputs[name], "--- FAIL: "+name+" (") {
			active = []string{name}
			break
		}
	}
	for _, name := range active {
		o.count(name, 0, false)
		o.fail(name, o.allText(name)+text)
	}
	if err != nil && len(o.failed) == 0 {
		o.fail("", text)
	}
}

// allText returns the output of the test and of its subtests that have not ended.
func (o *outcome) allText(test string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(o.outputs)) {
		if name == test || strings.HasPrefix(name, test+"/") {
			text += o.outputs[name]
		}
	}
	return text
}

func (o *outcome) fail(name, text string) {
	o.failed = append(o.failed, name)
	f := o.pkg.failures[name]
	if f == nil {
		f = &failure{first: text}
		o.pkg.failures[name] = f
	}
	f.count++
}

// saysMore reports whether the output of a test has more than the verdict.
func saysMore(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- FAIL: ") {
			return true
		}
	}
	return false
}

// test returns the test with the name; nil if there is none.
func (p *testPackage) test(name string) *testCase {
	i := slices.IndexFunc(p.tests, func(t *testCase) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return p.tests[i]
}

// count counts one run of a test.
func (o *outcome) count(name string, elapsed time.Duration, skips bool) {
	o.runs[name]++
	if t := o.pkg.test(name); t != nil {
		if t.runs == 0 {
			t.elapsed, t.skips = elapsed, skips
		}
		t.runs++
	}
}
