package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

var update = flag.Bool("update", false, "write the page and its drawings from the record")

// maxDrawing is the size of a drawing in bytes that a reader of the page may have to load.
const maxDrawing = 30_000

// TestPage holds the page and its drawings to the record of the last long run.
func TestPage(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "docs", "benchmarks")
	rec, err := readRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := (page{rec}).write(dir); err != nil {
			t.Fatal(err)
		}
	}
	files, err := page{rec}.files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s differs from %s; run go test ./test/churn -run TestPage -update (-want +got):\n%s", name, recordFile, d)
		}
		if strings.HasSuffix(name, ".svg") && len(want) > maxDrawing {
			t.Errorf("%s has %d bytes, want %d at most", name, len(want), maxDrawing)
		}
	}
}

// TestWritePage writes a run's record and page, and reads the record again.
func TestWritePage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "docs", "benchmarks")
	r := &run{plan: plan{time: time.Hour, seed: 1, rate: 8, out: dir}, commit: "0123456789ab"}
	r.agents = []*agent{{name: "long-lived"}, {name: "killed", node: &node{}}}
	for round := range 9 {
		for _, a := range r.agents {
			a.samples = append(a.samples, sample{rss: 40.25, heap: 5, files: float64(19 + round), goroutines: 44, rules: 67, interfaces: 2, addrs: 6})
		}
		r.phase("kill").add(tally{asked: 1000, again: 3})
		r.took = time.Duration(round) * time.Minute
		r.endRound()
	}
	r.judge()
	if err := r.writePage(); err != nil {
		t.Fatal(err)
	}
	rec, err := readRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r.snapshot(), rec); d != "" {
		t.Errorf("the record (-want +got):\n%s", d)
	}
	text, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"8 complete rounds", "**The run failed:** long-lived: descriptors grows", "| kill  |  9000 |", "../images/soak-rules.svg",
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if drawings, err := filepath.Glob(filepath.Join(dir, "..", "images", "soak-*.svg")); err != nil || len(drawings) != len(quantities) {
		t.Errorf("drawings: %q, %v", drawings, err)
	}
}
