package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// runner runs the tests of packages.
type runner struct {
	options  *options
	packages []*testPackage
	dir      string // for test binaries
	began    time.Time

	mu   sync.Mutex
	out  io.Writer // guarded by mu
	done int       // packages that the current step has done; guarded by mu
}

// failure is a test or subtest that has failed.
type failure struct {
	count int
	first string // its output
	// printed says that the output has been printed.
	printed bool
}

// run builds, learns and repeats.
func (r *runner) run(ctx context.Context) error {
	for _, p := range r.packages {
		if err := p.findTests(r.options.filter); err != nil {
			return err
		}
	}
	r.packages = slices.DeleteFunc(r.packages, func(p *testPackage) bool { return len(p.tests) == 0 })
	if err := r.eachPackage(ctx, "built", r.build); err != nil {
		return err
	}
	if err := r.eachPackage(ctx, "learned", r.learn); err != nil {
		return err
	}
	jobs := make(map[*testPackage][]job)
	for _, p := range r.packages {
		jobs[p] = plan(p.tests, r.options)
	}
	// The longest first, so that it does not run alone at the end.
	slices.SortStableFunc(r.packages, func(a, b *testPackage) int {
		return -cmp.Compare(expected(jobs[a]), expected(jobs[b]))
	})
	stop, err := startLoad(r.options.load)
	if err != nil {
		return err
	}
	defer stop()
	return r.eachPackage(ctx, "repeated", func(ctx context.Context, p *testPackage) error {
		return r.runJobs(ctx, p, jobs[p])
	})
}

// expected is about how long jobs take on an idle machine.
func expected(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		for _, t := range j.tests {
			total += time.Duration(j.count) * t.elapsed
		}
	}
	return total
}

// eachPackage calls f for each package, for as many at a time as the options say, and
// prints a line after each.
func (r *runner) eachPackage(ctx context.Context, done string, f func(context.Context, *testPackage) error) error {
	var all sync.WaitGroup
	r.done = 0
	errs := make([]error, len(r.packages))
	free := make(chan struct{}, r.options.parallel)
	for i, p := range r.packages {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if ctx.Err() != nil {
				return
			}
			if errs[i] = f(ctx, p); errs[i] == nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.done++
				r.printf("%d of %d %s: %s", r.done, len(r.packages), done, p.name())
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// printf prints a line. The caller holds r.mu.
func (r *runner) printf(format string, args ...any) {
	fmt.Fprintf(r.out, "%8s  %s\n", time.Since(r.began).Round(time.Second), fmt.Sprintf(format, args...))
}

func (r *runner) race(p *testPackage) bool { return p.isUnit && r.options.race }

func (r *runner) build(ctx context.Context, p *testPackage) error {
	name := strings.ReplaceAll(p.name(), "/", "_") + ".test"
	return p.build(ctx, filepath.Join(r.dir, name), r.race(p))
}

// learn runs each test once.
func (r *runner) learn(ctx context.Context, p *testPackage) error {
	return r.runJobs(ctx, p, []job{{tests: p.tests, count: 1}})
}

// runJobs runs the jobs one after the other, until the limit. What a job leaves out
// because its process ends early runs in a new process.
func (r *runner) runJobs(ctx context.Context, p *testPackage, jobs []job) error {
	for len(jobs) > 0 {
		if limit := r.options.limit; limit > 0 && time.Since(r.began) > limit {
			return nil
		}
		j := jobs[0]
		o, err := p.start(ctx, j, r.race(p))
		if o != nil && ctx.Err() != nil {
			o.active = nil // an interrupt is no failure
			_, failed := p.record(o, nil)
			r.printJob(p, j, failed)
			return ctx.Err()
		}
		if o == nil {
			return fmt.Errorf("running the tests of %s: %w", p.name(), err)
		}
		got, failed := p.record(o, err)
		jobs = append(j.rest(got), jobs[1:]...)
		r.printJob(p, j, failed)
	}
	return nil
}

func (r *runner) printJob(p *testPackage, j job, failed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printf("%s: %d tests, %d times", p.name(), len(j.tests), j.count)
	for _, name := range failed {
		if f := p.failures[name]; !f.printed {
			f.printed = true
			r.printf("%s: FAILED %s\n%s", p.name(), label(name), f.first)
		}
	}
}

// record adds the outcome of one process to p's tests. It returns how often each test
// has run and what failed.
func (p *testPackage) record(o *outcome, err error) (got map[string]int, failed []string) {
	got = make(map[string]int)
	for _, res := range o.results {
		p.count(got, res)
		for name, text := range res.failures {
			p.fail(name, text)
			failed = append(failed, name)
		}
	}
	text := fmt.Sprintf("%s\n%v\n", &o.process, err)
	for _, name := range o.unfinished() {
		p.count(got, result{test: name, action: "fail"})
		p.fail(name, o.allText(name)+text)
		failed = append(failed, name)
	}
	if err != nil && len(failed) == 0 {
		p.fail("", text)
		failed = append(failed, "")
	}
	return got, failed
}

// count counts one run of a test.
func (p *testPackage) count(got map[string]int, res result) {
	t := p.test(res.test)
	if t == nil {
		return
	}
	if t.runs == 0 {
		t.elapsed, t.skips = res.elapsed, res.action == "skip"
	}
	t.runs++
	got[res.test]++
}

func (p *testPackage) fail(name, text string) {
	f := p.failures[name]
	if f == nil {
		f = &failure{first: text}
		p.failures[name] = f
	}
	f.count++
}
