// Command fuzz lists and runs the fuzzers of this repository with Go's own fuzzing engine.
//
//	go run ./test/fuzz                                       lists them
//	go run ./test/fuzz -fuzz FuzzName -time 10m              runs one
//	go run ./test/fuzz -all -time 500x [-events FILE]        runs each
//
// A run starts with the seeds in the code, the corpus in testdata/fuzz, and the inputs that
// earlier runs found, which the go command keeps in its build cache. -all runs as many fuzzers
// at a time as there are processors, with one process each. The binaries are kept outside of
// the repository, so unchanged packages are not linked again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// settings are the command's flags.
type settings struct {
	fuzzer, pkg, time, events string
	all, fresh, unguided      bool
}

func run(ctx context.Context, args []string, out, problems io.Writer) error {
	var s settings
	if err := s.parse(args, problems); err != nil {
		return err
	}
	root, err := peer.Root()
	if err != nil {
		return err
	}
	all, err := find(root)
	if err != nil {
		return err
	}
	r := &runner{root: root, time: s.time, fresh: s.fresh, unguided: s.unguided, out: out, problems: problems}
	switch {
	case s.all:
		return r.runAll(ctx, all, s.events)
	case s.fuzzer == "":
		for _, f := range all {
			fmt.Fprintf(out, "%-24s %s\n", f.name, f.dir)
		}
		return nil
	}
	f, err := choose(all, s.fuzzer, s.pkg)
	if err != nil {
		return err
	}
	return r.runOne(ctx, f)
}

func (s *settings) parse(args []string, problems io.Writer) error {
	flags := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&s.fuzzer, "fuzz", "", "the `name` of the fuzzer to run")
	flags.StringVar(&s.pkg, "package", "", "its `directory`, if several packages have a fuzzer of that name")
	flags.StringVar(&s.time, "time", "1m", "for how `long` each fuzzer runs: a duration, or a number of inputs such as 500x")
	flags.BoolVar(&s.all, "all", false, "run all fuzzers")
	flags.BoolVar(&s.fresh, "fresh", false, "neither start with the inputs that earlier runs found, nor keep new ones")
	flags.BoolVar(&s.unguided, "unguided", false, "change inputs at random, without compiling packages to count what they reach")
	flags.StringVar(&s.events, "events", "", "with -all: write the results to a `file`, as events of go test -json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.all && (s.fuzzer != "" || s.pkg != "") {
		return errors.New("-all runs every fuzzer; leave out -fuzz and -package")
	}
	return nil
}

// choose returns the fuzzer with that name, in a directory unless dir is empty.
func choose(all []fuzzer, name, dir string) (fuzzer, error) {
	var found []fuzzer
	var dirs []string
	for _, f := range all {
		if f.name == name {
			dirs = append(dirs, f.dir)
			if dir == "" || "./"+strings.Trim(strings.TrimPrefix(dir, "./"), "/") == f.dir {
				found = append(found, f)
			}
		}
	}
	switch {
	case len(dirs) == 0:
		return fuzzer{}, fmt.Errorf("no fuzzer is called %s; without FUZZ, make fuzz lists all", name)
	case len(found) == 0:
		return fuzzer{}, fmt.Errorf("%s has no %s; it is in %s", dir, name, strings.Join(dirs, ", "))
	case len(found) > 1:
		return fuzzer{}, fmt.Errorf("several packages have a %s; choose one with PKG: %s", name, strings.Join(dirs, ", "))
	}
	return found[0], nil
}
