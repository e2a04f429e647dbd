package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// record is the number of no mutant. With it, functions with mutants record that they are called.
const record = -1

// measured is a test, what it takes without a mutant, and the mutants whose functions it calls.
type measured struct {
	name      string
	wall, cpu time.Duration
	reaches   []int
}

// reaching returns the tests that call the function with the mutant: first the quick ones, then the
// others. It returns all tests if none of them does.
func (t *tester) reaching(id int) (groups [][]measured) {
	var tests, rest []measured
	for _, test := range t.tests {
		if slices.Contains(test.reaches, id) {
			tests = append(tests, test)
		}
	}
	if len(tests) == 0 {
		return [][]measured{t.tests}
	}
	for i, test := range tests {
		if test.wall > quick {
			tests, rest = tests[:i], tests[i:]
			break
		}
	}
	for _, group := range [][]measured{tests, rest} {
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	return groups
}

// measure runs each test without a mutant, several at the same time, and sets t.tests, the quickest
// first.
func (t *tester) measure() error {
	cmd := exec.Command(filepath.Join(t.dir, "test"), "-test.list=.")
	cmd.Dir, cmd.Env = filepath.Join(t.root, t.pkg), t.env
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the tests of %s: %w", t.pkg, err)
	}
	var mu sync.Mutex // guards err and t.tests
	var workers sync.WaitGroup
	names := make(chan string)
	for range t.workers {
		workers.Go(func() {
			for name := range names {
				test, failed := t.measureTest(name)
				mu.Lock()
				t.tests, err = append(t.tests, test), errors.Join(err, failed)
				mu.Unlock()
			}
		})
	}
	for _, name := range strings.Fields(string(out)) {
		if !strings.HasPrefix(name, "Benchmark") && !strings.Contains(name, "Alloc") {
			names <- name
		}
	}
	close(names)
	workers.Wait()
	slices.SortFunc(t.tests, func(a, b measured) int { return cmp.Compare(a.wall, b.wall) })
	return err
}

// measureTest runs one test without a mutant. A test that fails gets a second chance.
func (t *tester) measureTest(name string) (measured, error) {
	e := execution{mutant: record, tests: "^" + name + "$", reached: filepath.Join(t.dir, "reached-"+name), cpu: 10 * time.Minute, wall: 10 * time.Minute}
	m := measured{name: name}
	for chance := 0; ; chance++ {
		began := time.Now()
		end, err := t.execute(e)
		m.wall, m.cpu = time.Since(began), end.cpu
		switch {
		case err != nil:
			return m, err
		case end.result == survived:
			m.reaches, err = readNumbers(e.reached)
			return m, err
		case chance == 1:
			return m, fmt.Errorf("%s without a mutant: %s, %s", name, end.result, end.detail)
		}
	}
}

// readNumbers reads a file with a number in each line. There are none in a file that doesn't exist.
func readNumbers(name string) (list []int, err error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, field := range strings.Fields(string(text)) {
		n, failed := strconv.Atoi(field)
		list, err = append(list, n), errors.Join(err, failed)
	}
	return list, err
}
