package coverage_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/coverage"
)

// source is the file that the profiles below describe.
const source = `package shop

type Till struct{ open bool }

func (t *Till) Open() {
	if t.open {
		panic("open already")
	}
	t.open = true
}

func Close() {
	// no statement yet
	println("closed")
}
`

// Two test binaries reached different parts of the file.
const (
	first = `mode: set
example.com/shop/till.go:5.23,6.12 1 1
example.com/shop/till.go:6.12,8.3 1 0
example.com/shop/till.go:9.2,9.15 1 0
example.com/shop/till.go:12.14,15.2 1 0
example.com/shop/stock/stock.go:3.13,5.2 2 1
`
	second = `mode: atomic
example.com/shop/till.go:5.23,6.12 1 0
example.com/shop/till.go:9.2,9.15 1 17
`
)

func parse(t *testing.T, texts ...string) coverage.Profile {
	t.Helper()
	p := make(coverage.Profile)
	for _, text := range texts {
		if err := p.Add(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestPackages(t *testing.T) {
	want := map[string]coverage.Count{
		"example.com/shop":       {Statements: 4, Covered: 2},
		"example.com/shop/stock": {Statements: 2, Covered: 2},
	}
	if diff := cmp.Diff(want, parse(t, first, second).Packages()); diff != "" {
		t.Error(diff)
	}
}

func TestWriteTable(t *testing.T) {
	var out strings.Builder
	parse(t, first, second).WriteTable(&out, "example.com/")
	var got [][]string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		{"package", "statements", "covered", "%"},
		{"shop", "4", "2", "50.0"},
		{"shop/stock", "2", "2", "100.0"},
		{"total", "6", "4", "66.6"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUncovered(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "till.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p := parse(t, first, second)
	if err := p.WriteUncovered(&out, root, "example.com/shop/", []string{"."}); err != nil {
		t.Fatal(err)
	}
	want := `till.go:6-8: (*Till).Open: panic("open already")
till.go:12: Close: never called, 1 statements
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestAddRejects(t *testing.T) {
	for name, text := range map[string]string{
		"no position": "mode: set\nexample.com/shop/till.go\n",
		"no counts":   "example.com/shop/till.go:5.23,6.12\n",
		"no number":   "example.com/shop/till.go:5.x,6.12 1 1\n",
	} {
		if err := make(coverage.Profile).Add(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
