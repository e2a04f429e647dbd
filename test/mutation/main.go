// Command mutation measures what the unit tests of some packages notice. Gremlins, which test/mutants.sh builds, changes one
// operator of the code at a time, in a copy of the repository, and runs the package's tests: a change that makes a test
// fail is killed, one that no test notices lives. All changes would take days, so this command chooses files by a
// seed until they have enough mutants that tests reach. It leaves out changes that no test can notice, which
// equivalent.txt lists with the reason, and prints the others that live, and a table.
//
//	bash test/mutants.sh [-count 400] [-seed 1] [PACKAGE DIRECTORY OR FILE...]
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// usual lists the packages that are tested unless the command line names others.
var usual = []string{"internal/wire", "cache", "server/resolver", "kubernetes"}

// kinds are the changes that gremlins does not make unless it is told to. The sign of a number, which it changes by default, is
// also changed as an operator.
var kinds = []string{"invert-assignments", "invert-bitwise", "invert-bwassign", "invert-logical", "invert-loopctrl", "remove-self-assignments"}

// timeoutFactor multiplies the time of the tests without a mutant.
const timeoutFactor = 5

// run is one run of the command.
type run struct {
	root, dir string // the repository, and a temporary directory
	gremlins  string
	workers   int
	seed      uint64
	known     known
	tally     tally
	out       io.Writer
}

func main() {
	r := &run{tally: make(tally), out: os.Stdout}
	flag.StringVar(&r.gremlins, "gremlins", "gremlins", "the `program`")
	flag.IntVar(&r.workers, "workers", 1, "mutants tested at the same time")
	flag.Uint64Var(&r.seed, "seed", 1, "chooses the files")
	count := flag.Int("count", 400, "mutants to test at least, the same number in each package")
	flag.Parse()
	if err := r.main(*count, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func (r *run) main(count int, targets []string) (err error) {
	if len(targets) == 0 {
		targets = usual
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
	for _, target := range targets {
		if err = r.test(target, (count+len(targets)-1)/len(targets)); err != nil {
			break
		}
	}
	r.tally.write(r.out)
	return err
}

// report is the part of gremlins' report that is used here.
type report struct {
	Files []struct {
		Name      string   `json:"file_name"` // relative to the package
		Mutations []mutant `json:"mutations"`
	} `json:"files"`
}

// mutant is one change of the code.
type mutant struct {
	Type, Status string // such as CONDITIONALS_BOUNDARY and LIVED
	Line, Column int    // of the operator, in bytes, from 1
}

// test tests mutants of a package's files, or of one file.
func (r *run) test(target string, count int) error {
	pkg, file := target, ""
	if strings.HasSuffix(target, ".go") {
		pkg, file = path.Split(target)
		pkg = path.Clean(pkg)
	}
	all, err := r.unleash(pkg, "--dry-run")
	if err != nil {
		return err
	}
	chosen := []string{file}
	if file == "" {
		chosen = choose(all, count, r.seed, pkg)
	}
	fmt.Fprintf(r.out, "# %s: %s\n", pkg, strings.Join(chosen, ", "))
	args := []string{"--timeout-coefficient", strconv.Itoa(timeoutFactor), "--workers", strconv.Itoa(r.workers)}
	for _, f := range all.Files {
		if !slices.Contains(chosen, f.Name) {
			args = append(args, "--exclude-files", "^"+regexp.QuoteMeta(f.Name)+"$")
		}
	}
	tested, err := r.unleash(pkg, args...)
	if err != nil {
		return err
	}
	return r.record(pkg, tested)
}

// unleash runs gremlins for a package and those below it.
func (r *run) unleash(pkg string, args ...string) (rep report, err error) {
	out := filepath.Join(r.dir, "gremlins.json")
	args = append([]string{"unleash", "--output", out, "--invert-negatives=false"}, args...)
	for _, kind := range kinds {
		args = append(args, "--"+kind)
	}
	cmd := exec.Command(r.gremlins, append(args, "./"+pkg)...)
	cmd.Dir = r.root
	if text, err := cmd.CombinedOutput(); err != nil {
		return rep, fmt.Errorf("gremlins: %w\n%s", err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return rep, err
	}
	return rep, json.Unmarshal(text, &rep)
}

// choose returns files of the package itself that have at least count mutants together. The seed alone decides,
// whatever the order of the files is.
func choose(all report, count int, seed uint64, pkg string) (files []string) {
	reached := make(map[string]int)
	for _, f := range all.Files {
		for _, m := range f.Mutations {
			if m.Status == "RUNNABLE" && !strings.Contains(f.Name, "/") {
				reached[f.Name]++
			}
		}
	}
	order := slices.Sorted(maps.Keys(reached))
	h := fnv.New64a()
	h.Write([]byte(pkg))
	rand.New(rand.NewPCG(seed, h.Sum64())).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, name := range order {
		if count <= 0 {
			break
		}
		files = append(files, name)
		count -= reached[name]
	}
	return files
}

// record counts the mutants of a package, and prints those that live.
func (r *run) record(pkg string, tested report) error {
	for _, f := range tested.Files {
		file := path.Join(pkg, f.Name)
		text, err := os.ReadFile(filepath.Join(r.root, file))
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		slices.SortFunc(f.Mutations, func(a, b mutant) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
		for _, m := range f.Mutations {
			marked := m.marked(lines)
			if m.Status == "LIVED" {
				if r.known[file+"\x00"+marked] {
					m.Status = equivalent
				} else {
					fmt.Fprintf(r.out, "%s:%d: %s\n", file, m.Line, marked)
				}
			}
			r.tally.add(pkg, m.Status)
		}
	}
	return nil
}

// marked returns the line that m changes, with the kind of the change before the operator: "if a {CONDITIONALS_BOUNDARY}< b {".
func (m mutant) marked(lines []string) string {
	if m.Line > len(lines) || m.Column > len(lines[m.Line-1]) {
		return ""
	}
	line := lines[m.Line-1]
	return strings.TrimSpace(line[:m.Column-1] + "{" + m.Type + "}" + line[m.Column-1:])
}

// tally counts statuses per package.
type tally map[string]map[string]int

// equivalent is the status of a mutant that equivalent.txt lists.
const equivalent = "EQUIVALENT"

func (t tally) add(pkg, status string) {
	if t[pkg] == nil {
		t[pkg] = make(map[string]int)
	}
	t[pkg][status]++
}

// write prints the table.
func (t tally) write(w io.Writer) {
	columns := []string{"KILLED", "TIMED OUT", "LIVED", equivalent, "NOT VIABLE", "NOT COVERED"}
	fmt.Fprintf(w, "\n%-24s", "package")
	for _, c := range columns {
		fmt.Fprintf(w, " %11s", strings.ToLower(c))
	}
	fmt.Fprintln(w)
	for _, pkg := range slices.Sorted(maps.Keys(t)) {
		fmt.Fprintf(w, "%-24s", pkg)
		for _, c := range columns {
			fmt.Fprintf(w, " %11d", t[pkg][c])
		}
		fmt.Fprintln(w)
	}
}

// known holds changes that no test can notice. The key is the file, a zero byte, and the marked
// line, so that it stays when lines above it change.
type known map[string]bool

// readKnown reads the list of equivalent mutants: a line with a file, and below it the marked
// lines, each indented by a tab and preceded by a comment with the reason.
func readKnown(name string) (known, error) {
	k := make(known)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		switch text := strings.TrimSpace(line); {
		case text == "" || text[0] == '#':
		case line[0] == '\t':
			k[file+"\x00"+text] = true
		default:
			file = text
		}
	}
	return k, lines.Err()
}
