package main

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line of test2json.
type event struct {
	Time                 time.Time
	Action, Test, Output string
	Elapsed              float64 // seconds; without parallel subtests
}

// result is the end of one run of a top-level test.
type result struct {
	test    string
	action  string // pass, fail or skip
	elapsed time.Duration
	// failures are the outputs of the subtests that failed, and of the test itself if no
	// subtest did, or if it says more than that one did.
	failures map[string]string
}

// outcome collects the events of one run of a test binary. The zero value is ready.
type outcome struct {
	results []result
	// active are the top-level tests that have begun, are not paused and have not ended, with
	// the time since when.
	active  map[string]time.Time
	process excerpt // output outside of tests

	outputs  map[string]*excerpt          // of tests and subtests that run
	failures map[string]map[string]string // of subtests that have ended, by top-level test
}

func (o *outcome) add(e event) {
	if o.active == nil {
		o.active, o.outputs = make(map[string]time.Time), make(map[string]*excerpt)
		o.failures = make(map[string]map[string]string)
	}
	top, _, isSubtest := strings.Cut(e.Test, "/")
	switch e.Action {
	case "run", "cont":
		if !isSubtest {
			o.active[top] = e.Time
		}
	case "pause":
		delete(o.active, e.Test)
	case "output":
		o.write(e)
	case "pass", "fail", "skip":
		o.end(e, top, isSubtest)
	}
}

// write keeps an output, unless it only announces a test.
func (o *outcome) write(e event) {
	switch {
	case strings.HasPrefix(e.Output, "=== "):
	case e.Test == "":
		o.process.write(e.Output)
	default:
		if o.outputs[e.Test] == nil {
			o.outputs[e.Test] = new(excerpt)
		}
		o.outputs[e.Test].write(e.Output)
	}
}

// end records the end of a test or subtest.
func (o *outcome) end(e event, top string, isSubtest bool) {
	if e.Test == "" {
		return // the process's; its exit code tells more
	}
	text := o.text(e.Test)
	delete(o.outputs, e.Test)
	if e.Action == "fail" && (!o.hasFailure(top, e.Test) || saysMore(text)) {
		if o.failures[top] == nil {
			o.failures[top] = make(map[string]string)
		}
		o.failures[top][e.Test] = text
	}
	if isSubtest {
		return
	}
	elapsed := max(time.Duration(e.Elapsed*float64(time.Second)), e.Time.Sub(o.active[top]))
	delete(o.active, top)
	o.results = append(o.results, result{test: top, action: e.Action, elapsed: elapsed, failures: o.failures[top]})
	delete(o.failures, top)
}

func (o *outcome) text(test string) string {
	if o.outputs[test] == nil {
		return ""
	}
	return o.outputs[test].String()
}

// allText returns the output of the test and of its subtests that have not ended.
func (o *outcome) allText(test string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.outputs)) {
		if name == test || strings.HasPrefix(name, test+"/") {
			b.WriteString(o.text(name))
		}
	}
	return b.String()
}

// unfinished returns the tests during which the process ended: the one that has failed
// with a panic, or else all that ran at that time.
func (o *outcome) unfinished() []string {
	active := slices.Sorted(maps.Keys(o.active))
	for _, name := range active {
		if strings.Contains(o.text(name), "--- FAIL: "+name+" (") {
			return []string{name}
		}
	}
	return active
}

// hasFailure reports whether a subtest of the test has failed.
func (o *outcome) hasFailure(top, test string) bool {
	for name := range o.failures[top] {
		if strings.HasPrefix(name, test+"/") {
			return true
		}
	}
	return false
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
