// Command cachelines counts what answering a query touches in memory, and prints a Markdown table:
//
//	go run ./test/cachelines [-tree FOLDER]
//
// It runs the benchmarks HotName and Miss of package server in valgrind's lackey, which writes every access, because virtual machines
// have no hardware counters. A query begins with each call of udpReader.answer. A hit includes its part of the batch, without the
// socket; a miss includes the sockets, the upstream's reply and Go's scheduler, without the kernel. A line has 64 bytes.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// queries is how many are counted, without the first ones.
const queries = 320

func main() {
	tree := flag.String("tree", ".", "the source `folder` to measure")
	flag.Parse()
	if err := run(os.Stdout, *tree); err != nil {
		fmt.Fprintln(os.Stderr, "cachelines:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, tree string) error {
	dir, err := os.MkdirTemp("", "nodens-cachelines-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "server.test")
	build := exec.Command("go", "test", "-c", "-tags", "valgrind", "-o", binary, "./server")
	build.Dir, build.Stderr = tree, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the benchmark: %w", err)
	}
	entry, err := address(binary, "github.com/nodens-dns/nodens/server.(*udpReader).answer")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "| answered by | lines of code | lines of data | of them written | instructions | queries |")
	fmt.Fprintln(out, "| --- | ---: | ---: | ---: | ---: | ---: |")
	for _, by := range []struct {
		benchmark, name string
		maxInstructions int // queries with more are left out: the garbage collector or the scheduler came between
	}{
		{"HotName/path", "the query path", 20_000}, {"HotName/kept", "a kept reply", 20_000}, {"Miss", "an upstream", 200_000},
	} {
		list, err := measure(binary, filepath.Join(tree, "server"), by.benchmark, entry, by.maxInstructions)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d | %d |\n", by.name, median(list, func(q query) int { return len(q.code) }),
			median(list, func(q query) int { return len(q.data) }), median(list, func(q query) int { return len(q.written) }),
			median(list, func(q query) int { return q.instructions }), len(list))
	}
	return nil
}

// address is that of a function in a binary.
func address(binary, function string) (uint64, error) {
	text, err := exec.Command("go", "tool", "nm", binary).Output()
	if err != nil {
		return 0, fmt.Errorf("reading the symbols: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == function {
			return strconv.ParseUint(f[0], 16, 64)
		}
	}
	return 0, fmt.Errorf("the benchmark has no function %s: name the one that answers a packet here", function)
}

// measure runs the benchmark in lackey.
func measure(binary, dir, benchmark string, entry uint64, maxInstructions int) ([]query, error) {
	trace, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer trace.Close()
	c := exec.Command("valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=3", binary,
		"-test.run", "^$", "-test.bench", benchmark, "-test.benchtime", fmt.Sprintf("%dx", queries), "-test.cpu", "1")
	var said bytes.Buffer
	c.Dir, c.ExtraFiles, c.Stdout, c.Stderr = dir, []*os.File{write}, &said, &said
	err = c.Start()
	write.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: on Debian: apt-get install valgrind", err)
	}
	list, err := readTrace(trace, entry, maxInstructions)
	if err := errors.Join(err, c.Wait()); err != nil {
		return nil, fmt.Errorf("running the benchmark in valgrind: %w\n%s", err, said.Bytes())
	}
	if len(list) < queries/2 {
		return nil, fmt.Errorf("%d queries are in the trace, want %d", len(list), queries)
	}
	return list, nil
}

// query is what one query touches: lines by number.
type query struct {
	code, data, written map[uint64]bool
	instructions        int
}

func newQuery() query {
	return query{code: map[uint64]bool{}, data: map[uint64]bool{}, written: map[uint64]bool{}}
}

// readTrace returns the queries with fewer than maxInstructions of a trace of lackey, whose lines are the kind of an access (I, L, S or M), the address and the
// length. Lines of other forms are valgrind's own.
func readTrace(trace io.Reader, entry uint64, maxInstructions int) (list []query, err error) {
	var q query
	lines := bufio.NewScanner(trace)
	for lines.Scan() {
		kind, address, length, ok := parseAccess(lines.Text())
		if !ok {
			continue
		}
		if kind == "I" && address == entry {
			if q.code != nil && q.instructions < maxInstructions {
				list = append(list, q)
			}
			q = newQuery()
		}
		if q.code != nil {
			q.add(kind, address/lineSize, (address+length-1)/lineSize)
		}
	}
	return list, lines.Err()
}

// parseAccess reads a line of a trace; ok is false if it is another one.
func parseAccess(line string) (kind string, address, length uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) != 2 || len(f[0]) != 1 {
		return "", 0, 0, false
	}
	at, size, _ := strings.Cut(f[1], ",")
	address, err := strconv.ParseUint(at, 16, 64)
	length, err2 := strconv.ParseUint(size, 10, 64)
	return f[0], address, length, err == nil && err2 == nil && length > 0
}

const lineSize = 64

// add adds an access to the lines from first to last.
func (q *query) add(kind string, first, last uint64) {
	for line := first; line <= last; line++ {
		switch kind {
		case "I":
			q.code[line] = true
		case "S", "M":
			q.written[line] = true
			q.data[line] = true
		case "L":
			q.data[line] = true
		}
	}
	if kind == "I" {
		q.instructions++
	}
}

// median is that of a count over the queries.
func median(list []query, count func(query) int) int {
	var n []int
	for _, q := range list {
		n = append(n, count(q))
	}
	slices.Sort(n)
	return n[len(n)/2]
}
