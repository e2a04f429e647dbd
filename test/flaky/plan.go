package main

import (
	"slices"
	"time"
)

// job is one run of a test binary: each of the tests, count times.
type job struct {
	tests []*testCase
	count int
}

const (
	// jobTime is how long a job should take on an idle machine. It bounds what is lost
	// when a test ends the process, and how much later than -limit the command ends.
	jobTime = time.Minute
	// minElapsed stands in for the time of a test that is too fast to be measured.
	minElapsed = 5 * time.Millisecond
)

// plan makes jobs of the tests and adds their runs to what is wanted of each test. Tests
// that skipped themselves are left out.
func plan(tests []*testCase, o *options) (jobs []job) {
	group := job{count: o.fast}
	var total time.Duration
	for _, t := range tests {
		cost := max(t.elapsed, minElapsed) * time.Duration(o.fast)
		switch {
		case t.skips:
			continue
		case t.elapsed >= o.threshold:
			t.wanted += o.slow
			jobs = append(jobs, split(t, o.slow)...)
			continue
		case total > 0 && total+cost > jobTime:
			jobs = append(jobs, group)
			group, total = job{count: o.fast}, 0
		}
		t.wanted += o.fast
		group.tests = append(group.tests, t)
		total += cost
	}
	if len(group.tests) > 0 {
		jobs = append(jobs, group)
	}
	return jobs
}

// split divides count runs of one test into jobs.
func split(t *testCase, count int) (jobs []job) {
	share := max(1, int(jobTime/max(t.elapsed, minElapsed)))
	for count > 0 {
		n := min(count, share)
		jobs = append(jobs, job{tests: []*testCase{t}, count: n})
		count -= n
	}
	return jobs
}

// rest makes jobs of what j has left out: tests that have run fewer times, got, than it
// asks for. There is none if no test has run at all.
func (j job) rest(got map[string]int) (jobs []job) {
	if len(got) == 0 {
		return nil
	}
	lacking := make(map[int][]*testCase)
	var counts []int
	for _, t := range j.tests {
		if n := j.count - got[t.name]; n > 0 {
			if lacking[n] == nil {
				counts = append(counts, n)
			}
			lacking[n] = append(lacking[n], t)
		}
	}
	slices.Sort(counts)
	for _, n := range counts {
		jobs = append(jobs, job{tests: lacking[n], count: n})
	}
	return jobs
}

// timeout is when the test binary gives up a job: far later than it can take.
func (j job) timeout() time.Duration {
	total := 10 * time.Minute
	for _, t := range j.tests {
		if t.runs == 0 {
			total += time.Minute // its time is unknown
		}
		total += 50 * time.Duration(j.count) * t.elapsed
	}
	return total
}
