package main

// Inside the package: a command has no outside.

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const shop = `package shop

func Sum(n int) (total int) {
	for i := 0; i < n; i++ {
		total += i
	}
	if n > 100 {
		println("large" + "!")
	}
	return total
}

func First[T comparable](list []T, other ...T) (none T) {
	if len(list) == 0 {
		return none
	}
	return list[0]
}

type Till struct{}

func (Till) Price(int, string) int { return 2 + 2 }

func Unused() int {
	return 1 + 1
}
`

const shopTest = `package shop

import "testing"

func TestSum(t *testing.T) {
	if got := Sum(4); got != 6 {
		t.Error(got)
	}
	if got := First([]string{"a"}, "b"); got != "a" {
		t.Error(got)
	}
	if got := (Till{}).Price(0, ""); got != 4 {
		t.Error(got)
	}
}

func TestNothing(*testing.T) {}
`

// writeModule writes a module with one package and returns its directory.
func writeModule(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "shop"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module example.com\n\ngo 1.26\n", "shop/shop.go": shop, "shop/shop_test.go": shopTest,
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTry(t *testing.T) {
	tests := []struct {
		name   string
		mutant mutant
		want   outcome
	}{
		{"noticed", mutant{line: 4, column: 16, kind: "CONDITIONALS_BOUNDARY"}, killed},
		{"not noticed", mutant{line: 7, column: 7, kind: "CONDITIONALS_NEGATION"}, survived},
		{"does not compile", mutant{line: 8, column: 19, kind: "ARITHMETIC_BASE"}, notViable},
		{"listed", mutant{line: 7, column: 7, kind: "CONDITIONALS_BOUNDARY"}, equivalent},
		{"endless", mutant{line: 4, column: 22, kind: "INCREMENT_DECREMENT"}, timedOut},
		{"generic", mutant{line: 14, column: 15, kind: "CONDITIONALS_NEGATION"}, killed},
		{"unnamed parameter", mutant{line: 22, column: 47, kind: "ARITHMETIC_BASE"}, killed},
	}
	var list []mutant
	for _, test := range tests {
		m := test.mutant
		m.file = "shop/shop.go"
		if !m.fill([]byte(shop)) {
			t.Fatalf("%s: no operator at %v", test.name, m)
		}
		list = append(list, m)
	}
	r := &run{root: writeModule(t), dir: t.TempDir(), env: os.Environ(), tally: make(tally), floor: 2 * time.Second, workers: 2, known: known{
		`shop/shop.go` + "\x00" + `if n {> to >=} 100 {`: true,
	}}
	shopTester, err := r.newTester("shop", list, len(list))
	if err != nil {
		t.Fatal(err)
	}
	for i, test := range tests {
		got, detail := notViable, ""
		if _, ok := shopTester.mutants[i+1]; ok {
			got, detail, err = shopTester.try(i + 1)
		}
		if got != test.want || err != nil {
			t.Errorf("%s: %s: %s (%s), %v; want %s", test.name, list[i], got, detail, err, test.want)
		}
	}
}

// TestReaching: a mutant is tested with the tests that call its function, the quick ones first.
func TestReaching(t *testing.T) {
	fast, other := measured{name: "TestFast", wall: quick, reaches: []int{1, 2}}, measured{name: "TestOther", wall: quick, reaches: []int{2}}
	slow := measured{name: "TestSlow", wall: 2 * quick, reaches: []int{2, 3}}
	shopTester := &tester{run: new(run), tests: []measured{fast, other, slow}}
	for id, want := range map[int]string{1: "^(TestFast)$", 2: "^(TestFast|TestOther)$ ^(TestSlow)$", 3: "^(TestSlow)$", 4: "^(TestFast|TestOther|TestSlow)$"} {
		var got []string
		for _, group := range shopTester.reaching(id) {
			got = append(got, shopTester.execution(id, group).tests)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("mutant %d runs %v, want %s", id, got, want)
		}
	}
}

// TestMeasure: each test is measured, and records the mutants whose functions it calls.
func TestMeasure(t *testing.T) {
	called, uncalled := mutant{file: "shop/shop.go", line: 4, column: 16, kind: "CONDITIONALS_BOUNDARY"}, mutant{file: "shop/shop.go", line: 25, column: 11, kind: "ARITHMETIC_BASE"}
	if !called.fill([]byte(shop)) || !uncalled.fill([]byte(shop)) {
		t.Fatal("no operator")
	}
	r := &run{root: writeModule(t), dir: t.TempDir(), env: os.Environ(), tally: make(tally), floor: 2 * time.Second, workers: 2}
	shopTester, err := r.newTester("shop", []mutant{called, uncalled}, 2)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]int)
	for _, test := range shopTester.tests {
		got[test.name] = test.reaches
		if test.wall <= 0 || test.cpu <= 0 {
			t.Errorf("%s takes %v, %v of CPU time", test.name, test.wall, test.cpu)
		}
	}
	if diff := cmp.Diff(map[string][]int{"TestSum": {1}, "TestNothing": nil}, got); diff != "" {
		t.Error(diff)
	}
}

// TestSurvivors: the output of a run names what a repeated run tests.
func TestSurvivors(t *testing.T) {
	want := mutant{file: "shop/shop.go", line: 5, column: 9, kind: "INVERT_ASSIGNMENTS"}
	if !want.fill([]byte(shop)) {
		t.Fatal("no operator")
	}
	output := filepath.Join(t.TempDir(), "output")
	text := "# shop: 2 mutants\nkilled     " + want.String() + " (3 s) TestSum\nsurvived   " + want.String() + " (3 s) \n"
	if err := os.WriteFile(output, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readSurvivors(output)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if !got[0].fill([]byte(shop)) || got[0] != want {
		t.Errorf("got %v, want %v", got[0], want)
	}
}

func TestReadKnown(t *testing.T) {
	name := filepath.Join(t.TempDir(), "equivalent.txt")
	text := "# A heading.\n\nshop/shop.go\n\t# Reason.\n\tif n {> to >=} 100 {\n\nshop/till.go\n\ti{++ to --}\n"
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readKnown(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(known{"shop/shop.go\x00if n {> to >=} 100 {": true, "shop/till.go\x00i{++ to --}": true}, got); diff != "" {
		t.Error(diff)
	}
}

// TestEquivalents: each listed mutant still names a line of the code.
func TestEquivalents(t *testing.T) {
	list, err := readKnown("equivalent.txt")
	if err != nil {
		t.Fatal(err)
	}
	for key := range list {
		if !namesLine(t, key) {
			t.Errorf("equivalent.txt: no such line: %q", key)
		}
	}
}

// TestShuffle: the seed alone decides, also if the list comes in another order.
func TestShuffle(t *testing.T) {
	var list []mutant
	for line := range 50 {
		list = append(list, mutant{file: "a.go", line: line})
	}
	other := slices.Clone(list)
	slices.Reverse(other)
	shuffle(list, 1, "shop")
	shuffle(other, 1, "shop")
	if !slices.Equal(list, other) {
		t.Error("two orders with one seed")
	}
	shuffle(other, 2, "shop")
	if slices.Equal(list, other) {
		t.Error("one order with two seeds")
	}
}

// namesLine reports whether a key of known names a line of a file in the repository.
func namesLine(t *testing.T, key string) bool {
	t.Helper()
	file, marked, _ := strings.Cut(key, "\x00")
	text, err := os.ReadFile(filepath.Join("../..", file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), change.ReplaceAllString(marked, "$1"))
}

// change matches the change in a marked line.
var change = regexp.MustCompile(`\{(\S+) to \S+\}`)
