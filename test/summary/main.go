// Command summary reads the output of `go test -json` and prints a line for each package, the output
// of failed tests, the reasons of skipped tests, and the totals. It exits with 1 if a test failed or
// none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

func main() {
	total := new(results)
	for _, name := range os.Args[1:] {
		f, err := os.Open(name)
		if err == nil {
			err = total.read(f)
			_ = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "summary:", err)
			os.Exit(1)
		}
	}
	if !total.print(os.Stdout) {
		os.Exit(1)
	}
}

// event is a line of `go test -json` (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a build's output
	FailedBuild                   string
	Elapsed                       float64 // seconds
}

// id says whose event it is.
type id struct{ pkg, test string }

// results is what all events come to.
type results struct {
	output  map[id]*strings.Builder
	ended   map[id]event
	builds  map[string]*strings.Builder
	order   []id // of ends
	subtest map[id]bool
}

func (r *results) read(in io.Reader) error {
	if r.output == nil {
		r.output, r.ended = make(map[id]*strings.Builder), make(map[id]event)
		r.builds, r.subtest = make(map[string]*strings.Builder), make(map[id]bool)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20) // one failed comparison may print a whole rule set
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // a line of the go command itself; the exit code tells
		}
		r.add(e)
	}
	return lines.Err()
}

func (r *results) add(e event) {
	at := id{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		write(r.builds, e.ImportPath, e.Output)
	case "output":
		write(r.output, at, e.Output)
	case "pass", "fail", "skip":
		r.ended[at] = e
		r.order = append(r.order, at)
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			r.subtest[id{e.Package, e.Test[:i]}] = true
		}
	}
}

func write[K comparable](m map[K]*strings.Builder, k K, s string) {
	if m[k] == nil {
		m[k] = new(strings.Builder)
	}
	m[k].WriteString(s)
}

// print reports whether all is well. Tests are counted once, at their leaves.
func (r *results) print(w io.Writer) bool {
	var passed, failed, skipped int
	perPackage := make(map[string][3]int)
	for _, at := range r.order {
		e := r.ended[at]
		if at.test == "" {
			if e.Action == "fail" && e.FailedBuild != "" {
				failed++
				fmt.Fprintf(w, "\n--- %s does not build\n%s", at.pkg, text(r.builds, e.FailedBuild))
			}
			continue
		}
		n := perPackage[at.pkg]
		switch e.Action {
		case "fail":
			fmt.Fprintf(w, "\n--- FAIL %s %s\n%s", at.pkg, at.test, text(r.output, at))
			if !r.subtest[at] {
				failed, n[1] = failed+1, n[1]+1
			}
		case "skip":
			fmt.Fprintf(w, "skipped %s %s:%s\n", at.pkg, at.test, reason(text(r.output, at)))
			skipped, n[2] = skipped+1, n[2]+1
		default:
			if !r.subtest[at] {
				passed, n[0] = passed+1, n[0]+1
			}
		}
		perPackage[at.pkg] = n
	}
	failed += r.printPackages(w, perPackage)
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed == 0 && passed > 0
}

// printPackages prints a line for each package and gives the number of those that
// failed with no test of theirs to blame: a panic, a timeout.
func (r *results) printPackages(w io.Writer, perPackage map[string][3]int) (orphans int) {
	var names []string
	for at := range r.ended {
		if at.test == "" {
			names = append(names, at.pkg)
		}
	}
	sort.Strings(names)
	fmt.Fprintf(w, "\n%-58s %7s %7s %7s %9s\n", "package", "passed", "failed", "skipped", "seconds")
	for _, name := range names {
		n, e := perPackage[name], r.ended[id{name, ""}]
		fmt.Fprintf(w, "%-58s %7d %7d %7d %9.1f\n", name, n[0], n[1], n[2], e.Elapsed)
		if e.Action == "fail" && e.FailedBuild == "" && n[1] == 0 {
			orphans++
			fmt.Fprintf(w, "\n--- FAIL %s\n%s", name, text(r.output, id{name, ""}))
		}
	}
	return orphans
}

func text[K comparable](m map[K]*strings.Builder, k K) string {
	if m[k] == nil {
		return ""
	}
	return m[k].String()
}

// reason is the last line of a skipped test that says something at a place in its
// code.
func reason(output string) string {
	said := " no reason given"
	for line := range strings.Lines(output) {
		_, at, ok := strings.Cut(line, ".go:")
		if _, why, found := strings.Cut(at, ": "); ok && found && !strings.HasPrefix(why, "===") {
			said = " " + strings.TrimSpace(why)
		}
	}
	return said
}
