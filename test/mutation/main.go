// Command mutation measures what the unit tests of some packages notice. It changes one operator
// of the code at a time and runs the package's tests: a change that makes a test fail is killed,
// one that no test notices survives. Gremlins (test/mutation/gremlins) finds the possible changes in
// code that tests reach; this command chooses some of them by a seed, because gremlins can only run
// all of them, and it compiles each. This command compiles a package once, with all its mutants. For
// each mutant it runs the tests that call the changed function, with limits derived from what these
// tests take without it. The repository's files don't change: the compiler reads the changed files
// through an overlay.
//
//	go run ./test/mutation -gremlins PROGRAM [-count 400] [-seed 1] [PACKAGE DIRECTORY...]
//	go run ./test/mutation -again OUTPUT
//
// Survivors for which no test can be written are listed in equivalent.txt with the reason.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// usual lists the packages that are tested unless the command line names others.
var usual = []string{"internal/wire", "cache", "server/resolver", "kubernetes"}

// run is one run of the command.
type run struct {
	root, dir string // the repository, and a temporary directory
	env       []string
	gremlins  string
	workers   int
	seed      uint64
	floor     time.Duration // of time limits
	known     known
	tally     tally
}

func main() {
	r := &run{tally: make(tally), env: os.Environ(), floor: 10 * time.Second}
	flag.StringVar(&r.gremlins, "gremlins", "gremlins", "the `program`")
	flag.IntVar(&r.workers, "workers", 1, "mutants tested at the same time")
	flag.Uint64Var(&r.seed, "seed", 1, "chooses the mutants")
	count := flag.Int("count", 400, "mutants to test, the same number in each package")
	again := flag.String("again", "", "test only the mutants that survived according to this `file`, an earlier run's output")
	flag.Parse()
	if err := r.main(*count, *again, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func (r *run) main(count int, again string, packages []string) (err error) {
	if len(packages) == 0 {
		packages = usual
	}
	if r.root, err = os.Getwd(); err != nil {
		return err
	}
	if r.known, err = readKnown(filepath.Join(r.root, "test/mutation/equivalent.txt")); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "nodens-mutation-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	if again != "" {
		err = r.repeat(again)
	} else {
		for n, pkg := range packages {
			// The first packages get one more if the count does not divide evenly.
			quota := (count + len(packages) - 1 - n) / len(packages)
			if err = r.sample(pkg, quota); err != nil {
				break
			}
		}
	}
	r.tally.write(os.Stdout)
	return err
}

// sample tests a number of a package's mutants, in the order that the seed gives. Mutants that don't
// compile are not counted.
func (r *run) sample(pkg string, quota int) error {
	list, uncovered, err := r.list(pkg)
	if err != nil {
		return err
	}
	fmt.Printf("# %s: %d mutants; the package's tests don't reach %d more\n", pkg, len(list), uncovered)
	shuffle(list, r.seed, pkg)
	return r.test(pkg, list, quota)
}

// repeat tests the survivors of an earlier run.
func (r *run) repeat(name string) error {
	list, err := readSurvivors(name)
	if err != nil {
		return err
	}
	byPackage := make(map[string][]mutant)
	for _, m := range list {
		text, err := os.ReadFile(filepath.Join(r.root, m.file))
		if err != nil {
			return err
		}
		if !m.fill(text) {
			return fmt.Errorf("%s: the code has changed since", m)
		}
		byPackage[path.Dir(m.file)] = append(byPackage[path.Dir(m.file)], m)
	}
	for pkg, list := range byPackage {
		if err := r.test(pkg, list, len(list)); err != nil {
			return err
		}
	}
	return nil
}

// test tests the first count mutants of list that compile.
func (r *run) test(pkg string, list []mutant, count int) error {
	t, err := r.newTester(pkg, list, count)
	if err != nil {
		return err
	}
	fmt.Printf("# %s: %d tests\n", pkg, len(t.tests))
	next := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex // guards err, r.tally and the order of lines
	for range r.workers {
		workers.Go(func() {
			for id := range next {
				began := time.Now()
				result, detail, failed := t.try(id)
				mu.Lock()
				err = errors.Join(err, failed)
				r.tally.add(pkg, result)
				fmt.Printf("%-10s %s (%.0f s) %s\n", result, t.mutants[id], time.Since(began).Seconds(), detail)
				mu.Unlock()
			}
		})
	}
	for _, id := range slices.Sorted(maps.Keys(t.mutants)) {
		next <- id
	}
	close(next)
	workers.Wait()
	return err
}
