package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/gotest"
	"github.com/nodens-dns/nodens/test/modules"
)

// module is the prefix of the packages' import paths.
const module = "github.com/nodens-dns/nodens/"

// stage is one command of the run.
type stage struct {
	name string
	dir  string   // relative to the repository's root; empty for the root
	env  []string // in addition to the run's own
	args []string // the program and its arguments
	// binaries is the name of the stage whose test binaries it uses; empty for its own.
	binaries string
	// events says that the command prints the events of `go test -json`. Otherwise it counts as one
	// check, which passes if the exit code is 0.
	events bool
	// repeats says that it runs packages of another stage.
	repeats bool
}

// goTest returns the stage of a `go test` with these flags and packages. It leaves `go vet` to make
// lint, which runs all of it on all packages. GOGC is for the compiler, which then takes a sixth less CPU
// time; test/cpu.sh keeps it from the tests.
func goTest(name string, packages []gotest.Package, flags ...string) stage {
	args := append([]string{"go", "test", "-count=1", "-json", "-vet=off"}, flags...)
	for _, p := range packages {
		args = append(args, p.ImportPath)
	}
	return stage{name: name, args: args, env: []string{"GOGC=400"}, events: true}
}

// rerunStage returns the stage that runs the tests of a package which match a regexp once more, with the flags and the binary
// of the stage in which they ran. pkg is the package's name in the events.
func rerunStage(stages []stage, pkg, tests string) (stage, error) {
	for _, s := range stages {
		name, repeated := strings.CutSuffix(pkg, " ("+s.name+")")
		i := slices.Index(s.args, name)
		if repeated != s.repeats || i < 0 || s.args[1] != "test" {
			continue
		}
		s.args = slices.DeleteFunc(slices.Clone(s.args), func(arg string) bool { return strings.HasPrefix(arg, module) })
		s.args = append(s.args, "-run", tests, name)
		return s, nil
	}
	return stage{}, fmt.Errorf("no stage of go test has the package %s, so its tests are not run again", pkg)
}

// race makes the stage run under the race detector, which needs cgo. It delays the end of a
// process by one second, so that other threads can report races; tests start hundreds of
// processes, and 20 ms are enough.
func (s stage) race() stage {
	i := slices.Index(s.args, "-json")
	s.args = slices.Insert(slices.Clone(s.args), i, gotest.RaceFlags...)
	s.env = append(slices.Clone(s.env), "CGO_ENABLED=1", "GORACE=atexit_sleep_ms=20")
	return s
}

// slowest are packages that take long. A stage starts with them, so that it does not end with
// one of them alone.
var slowest = []string{
	"netsetup", "cmd/nodens", "server", "upstream", "cmd/nodens/app", "kubernetes", "internal/handover",
	"test/differential", "test/node", "test/bench/failover", "test/bench/queries", "daemonset", "test/watch", "test/prometheus",
	"test/bench/scale", "test/hostile", "test/bench/counting", "test/bench/fairness", "test/pagetest", "test/churn", "test/attribution", "test/firewalls",
	"test/lookups",
}

// withoutRace matches the tests that are skipped under the race detector: they count allocations,
// compute on one goroutine, or compare runs.
const withoutRace = "Alloc|^Test(Permission$|CommandMemory|AgentMemory|Worst|Isolation|PolicyIsolation|RPZIsolation|PolicyMemory|Large$|ChangesCost|BytesMatchHeap|SnapshotMemory)"

// alone is the package whose test counts queries that real servers must not lose although they are at their limits: on a
// machine that is busy with something else they do.
const alone = module + "test/upstreams"

// plan returns the lists of stages that run side by side, and those that follow them. Unit tests run under the race
// detector, except for those that match withoutRace. Benchmarks run once, to keep them working.
// The suites below test/ and daemonset/ talk to other processes, which the race detector can't
// observe. In the long form stages run one after the other, and the bench has one of its own,
// because it measures. Test binaries stay in the directory binaries.
func plan(ctx context.Context, o options, binaries string) (lists [][]stage, last []stage, err error) {
	packages := make(map[string][]gotest.Package)
	for _, dir := range modules.Tested() {
		list, err := listPackages(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		packages[dir] = list
	}
	var units, suites, bench, quiet []gotest.Package
	for _, p := range packages[modules.Root] {
		switch {
		case o.soak && strings.HasPrefix(p.ImportPath, module+"test/bench"):
			bench = append(bench, p)
		case p.ImportPath == alone:
			quiet = append(quiet, p)
		case strings.HasPrefix(p.ImportPath, module+"test/") || strings.HasPrefix(p.ImportPath, module+"daemonset"):
			suites = append(suites, p)
		default:
			units = append(units, p)
		}
	}
	pinned, others := splitPins(units)
	inModule := func(dir string, flags ...string) stage {
		s := goTest(path.Base(dir), packages[dir], append(flags, "-timeout", o.timeout())...)
		s.dir = dir
		return s
	}
	const unitTests, pins = "unit tests", "pins"
	allocations := goTest(pins, pinned, "-run", withoutRace, "-timeout", o.timeout())
	allocations.repeats = true
	first := []stage{
		goTest(unitTests, units, "-p", "2", "-timeout", o.timeout()).race(),
		benchmarks("benchmarks, raced", others, unitTests, o).race(),
	}
	second := []stage{
		goTest("suites", suites, "-p", "3", "-timeout", o.timeout()),
		inModule(modules.Release),
		inModule(modules.Dnstap, "-bench", ".", "-benchtime", "1x"),
		{name: "fuzzers", args: append([]string{"go", "run", "./test/fuzz", "-all"}, o.fuzzFlags()...), events: true},
		{name: "arm64", args: []string{"bash", "test/arm64.sh", "short", "/dev/stdout"}, events: true, repeats: true},
		allocations,
		benchmarks("benchmarks", pinned, pins, o),
	}
	peers := []stage{{name: "other programs", args: []string{"go", "run", "./test/peer/prebuild", "test"}}}
	last = []stage{goTest("upstreams", quiet, "-timeout", o.timeout())}
	if !o.soak {
		after, lastErr := o.selectStages(binaries, last)
		lists, err = o.selectStages(binaries, first, second, peers)
		return lists, slices.Concat(after...), errors.Join(err, lastErr)
	}
	measured := []stage{
		goTest("bench", bench, "-p", "1", "-timeout", o.timeout()),
		{name: "churn", args: []string{"go", "run", "./test/churn", "-time", o.churn.String()}},
	}
	lists, err = o.selectStages(binaries, slices.Concat(peers, first, second, last, measured))
	return lists, nil, err
}

var isBenchmark = regexp.MustCompile("^Benchmark")

// benchmarks returns a stage that runs each benchmark of the packages once, with the binaries of
// another stage. It is a stage of its own because the go command runs packages one at a time if it
// has to run benchmarks.
func benchmarks(name string, packages []gotest.Package, binaries string, o options) stage {
	packages = slices.DeleteFunc(slices.Clone(packages), func(p gotest.Package) bool { return len(p.Matching(isBenchmark)) == 0 })
	s := goTest(name, packages, "-run", "^$", "-bench", ".", "-benchtime", "1x", "-timeout", o.timeout())
	s.binaries, s.repeats = binaries, true
	return s
}

// selectStages returns the stages that the flags select. Their test binaries stay in the
// directory binaries.
func (o options) selectStages(binaries string, lists ...[]stage) ([][]stage, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	selected := make([][]stage, len(lists))
	for i, list := range lists {
		for _, s := range list {
			if !only.MatchString(s.name) {
				continue
			}
			if err := s.keepBinaries(binaries); err != nil {
				return nil, err
			}
			selected[i] = append(selected[i], s)
		}
	}
	return selected, nil
}

// timeout ends a package's tests that hang.
func (o options) timeout() string {
	if o.soak {
		return "2h"
	}
	return "20m"
}

// fuzzFlags says how many inputs each fuzzer tries. It is a count, because a fuzzer that
// reaches a time limit at the wrong moment reports a failure. The long form starts with what
// earlier runs found. 500 inputs are too few for guidance, which needs every package compiled
// once more.
func (o options) fuzzFlags() []string {
	if o.soak {
		return []string{"-time", "50000x"}
	}
	return []string{"-time", "500x", "-fresh", "-unguided"}
}

// listPackages returns the packages of the module in dir that have tests, slow ones first.
func listPackages(ctx context.Context, dir string) ([]gotest.Package, error) {
	packages, err := gotest.List(ctx, dir, "./...")
	rank := func(p gotest.Package) int {
		if i := slices.Index(slowest, p.Name()); i >= 0 {
			return i
		}
		return len(slowest)
	}
	slices.SortStableFunc(packages, func(a, b gotest.Package) int { return rank(a) - rank(b) })
	return packages, err
}

// splitPins returns the packages with tests that match withoutRace, and all others. The first are
// linked a second time, without the race detector, and their benchmarks run there. The other
// benchmarks run under it, which saves linking them.
func splitPins(packages []gotest.Package) (pinned, others []gotest.Package) {
	pins := regexp.MustCompile(withoutRace)
	for _, p := range packages {
		if len(p.Matching(pins)) > 0 {
			pinned = append(pinned, p)
		} else {
			others = append(others, p)
		}
	}
	return pinned, others
}
