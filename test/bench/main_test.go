package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/bench/scale"
)

func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args     []string
		rounds   int
		services int
		command  string
		fails    string
	}{
		{nil, 5, scale.DefaultServices, "go run ./test/bench -rounds 5 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-scale"}, 3, scale.DefaultServices, "go run ./test/bench -scale -rounds 3 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-scale", "-rounds=1", "-scale-services=200", "-only=agents"}, 1, 200,
			"go run ./test/bench -scale -scale-services 200 -rounds 1 -seconds 2 -only 'agents' -out docs/benchmarks", ""},
		{[]string{"-fleet"}, 1, scale.DefaultServices, "go run ./test/bench -fleet -rounds 1 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-fleet", "-fleet-sizes=200,400"}, 1, scale.DefaultServices,
			"go run ./test/bench -fleet -fleet-sizes 200,400 -rounds 1 -seconds 2 -out docs/benchmarks", ""},
		{args: []string{"-fleet", "-fleet-sizes=0"}, fails: "no number of agents"},
		{[]string{"-attribution", "-seconds=1"}, 9, scale.DefaultServices, "go run ./test/bench -attribution -rounds 9 -seconds 1 -out docs/benchmarks", ""},
		{[]string{"-start"}, 5, scale.DefaultServices, "go run ./test/bench -start -rounds 5 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-watching"}, 9, scale.DefaultServices, "go run ./test/bench -watching -rounds 9 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-policies", "-rounds=3"}, 3, scale.DefaultServices, "go run ./test/bench -policies -rounds 3 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-floods", "-shares", "-before=abc"}, 9, scale.DefaultServices, "go run ./test/bench -floods -shares -before abc -rounds 9 -seconds 2 -out docs/benchmarks", ""},
		{[]string{"-program", "-before=abc"}, 5, scale.DefaultServices, "go run ./test/bench -program -before abc -rounds 5 -seconds 2 -out docs/benchmarks", ""},
		{args: []string{"-program", "-kernel"}, fails: "sections of their own"},
		{args: []string{"-budgets", "-kernel"}, fails: "sections of their own"},
		{args: []string{"-start", "-worst"}, fails: "sections of their own"},
		{args: []string{"-attribution", "-kernel"}, fails: "sections of their own"},
		{args: []string{"-scale-services=39"}, fails: "at least 40 Services"},
		{args: []string{"-rounds=-1"}, fails: "at least one round"},
		{args: []string{"-only=("}, fails: "-only"},
		{args: []string{"more"}, fails: "no arguments"},
	} {
		o, err := parseFlags(test.args, io.Discard)
		if test.fails != "" {
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%q: %v, want an error with %q", test.args, err, test.fails)
			}
			continue
		}
		if err != nil || o.plan.Rounds != test.rounds || o.services != test.services || o.plan.Command() != test.command {
			t.Errorf("%q: %d rounds, %d Services, %v, %s", test.args, o.plan.Rounds, o.services, err, o.plan.Command())
		}
	}
}

// TestRun runs the program, which writes pages with their drawings.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts an agent: skipped under -short")
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(harness.ErrNoDnsperf)
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	dir := filepath.Join(t.TempDir(), "docs", "benchmarks")
	var out strings.Builder
	args := []string{"-rounds=1", "-seconds=0.1", "-cluster=false", "-only=^cached A, at saturation$/^nodens$", "-out=" + dir}
	if err := run(t.Context(), args, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "queries.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{out.String(), string(page)} {
		if !strings.Contains(text, "| nodens ") {
			t.Errorf("no row in\n%s", text)
		}
	}
	plots, err := filepath.Glob(filepath.Join(dir, figures.PlotDir, "bench-*.svg"))
	if err != nil || len(plots) == 0 {
		t.Errorf("no drawings: %v", err)
	}
}
