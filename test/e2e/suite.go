package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// check is a line of the table.
type check struct {
	// name says what is true if it passes.
	name string
	// run returns what was seen, in a few words with the numbers, or why it fails.
	run func(ctx context.Context, s *suite) (seen string, err error)
}

// part is a group of checks in one cluster.
type part struct {
	name string
	// cluster is what cluster it needs; parts with the same one share it.
	cluster stage
	// agent says that nodens has to be installed, from daemonset/nodens.yaml, before it
	// begins.
	agent  bool
	checks []check
}

// stage is a kind of cluster.
type stage struct {
	proxy     string
	dualStack bool
}

// The clusters that parts run in.
var (
	usual = stage{proxy: "iptables"}
	dual  = stage{proxy: "nftables", dualStack: true}
)

// parts are all of them, in their order.
func parts() []part {
	return []part{
		{name: "drop-in", cluster: usual, checks: dropIn()},
		{name: "install", cluster: usual, checks: install()},
		{name: "names", cluster: usual, agent: true, checks: names()},
		{name: "scraping", cluster: usual, agent: true, checks: scraping()},
		{name: "chaos", cluster: usual, agent: true, checks: chaos()},
		{name: "dual-stack", cluster: dual, checks: dualStack()},
	}
}

// suite is one run.
type suite struct {
	keep bool
	dir  string
	// out is the document to write; none if it is empty.
	out string
	// outage is how long the API server is away when that is looked at.
	outage time.Duration
	// root is the tree's top.
	root string
	// cluster is the one that is up, of kind stage, and agent says that nodens is
	// installed in it.
	cluster *cluster.Cluster
	stage   stage
	agent   bool
	// images are the files of what nodes have, once they are written.
	images []string
	// left is what clusters have left behind.
	left  []string
	lines []line
}

// line is a check's outcome.
type line struct {
	part, name, seen string
	err              error
	took             time.Duration
}

// run runs the wanted parts, or all if none is named, and prints the table.
func (s *suite) run(ctx context.Context, wanted []string) (err error) {
	if s.root, err = peer.Root(); err != nil {
		return err
	}
	remove, err := s.folder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	defer func() { err = errors.Join(err, s.down()) }() // after a panic
	for _, p := range parts() {
		if ctx.Err() == nil && (len(wanted) == 0 || slices.Contains(wanted, p.name)) {
			s.part(ctx, p)
		}
	}
	interrupted := context.Cause(ctx)
	if s.keep {
		fmt.Println("the cluster stays up; interrupt to end it")
		<-ctx.Done()
	}
	s.check(ctx, "end", check{"nothing is left behind", leave})
	if s.out != "" {
		err = s.record(ctx, s.out)
	}
	return errors.Join(interrupted, s.report(os.Stdout), err)
}

// folder has the folder there, and gives what to do with it at the end.
func (s *suite) folder() (remove func() error, err error) {
	if s.dir == "" {
		s.dir, err = os.MkdirTemp("", "nodens-e2e-")
		return func() error { return os.RemoveAll(s.dir) }, err
	}
	if s.dir, err = filepath.Abs(s.dir); err == nil {
		err = os.MkdirAll(s.dir, 0o755)
	}
	return func() error { return nil }, err
}

// part runs a part's checks. One that fails doesn't keep the next from running, what
// they need does.
func (s *suite) part(ctx context.Context, p part) {
	if !s.check(ctx, p.name, check{"what it needs is up", func(ctx context.Context, s *suite) (string, error) {
		return s.prepare(ctx, p)
	}}) {
		return
	}
	for _, c := range p.checks {
		s.check(ctx, p.name, c)
	}
}

func (s *suite) check(ctx context.Context, part string, c check) bool {
	began := time.Now()
	seen, err := c.run(ctx, s)
	l := line{part: part, name: c.name, seen: seen, err: err, took: time.Since(began)}
	s.lines = append(s.lines, l)
	l.print(os.Stdout)
	if err != nil && s.cluster != nil {
		fmt.Println(s.picture(ctx))
	}
	return err == nil
}

func (l line) print(w io.Writer) {
	verdict, seen := "ok  ", l.seen
	if l.err != nil {
		verdict, seen = "FAIL", l.err.Error()
	}
	fmt.Fprintf(w, "%s  %-11s %-58s %6.1f s  %s\n", verdict, l.part, l.name, l.took.Seconds(), seen)
}

// report prints all lines, and is an error if one failed or there is none.
func (s *suite) report(w io.Writer) error {
	failed := 0
	fmt.Fprintln(w, "\nWhat was checked in a real cluster:")
	for _, l := range s.lines {
		l.print(w)
		if l.err != nil {
			failed++
		}
	}
	fmt.Fprintf(w, "e2e: %d passed, %d failed\n", len(s.lines)-failed, failed)
	if failed > 0 || len(s.lines) == 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(s.lines))
	}
	return nil
}
