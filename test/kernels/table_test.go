package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// cellsOf returns a row whose cells are yes except those given.
func cellsOf(kernel, arch string, others map[string]string) row {
	r := row{kernel, arch, make(map[string]string)}
	for _, c := range columns() {
		r.cells[c] = "yes"
	}
	for c, cell := range others {
		r.cells[c] = cell
	}
	return r
}

func TestParseFeatures(t *testing.T) {
	said := "[ 1.0] boot\r\nfeature answers: yes\r\nfeature owner table: refused: no table: it is old\r\nfeature unknown: yes\r\nsome feature nftables: yes\r\nfeature broken\r\n"
	want := map[string]string{"answers": "yes", "owner table": "refused: no table: it is old"}
	if diff := cmp.Diff(want, parseFeatures([]byte(said))); diff != "" {
		t.Error(diff)
	}
}

// TestTable: what table writes is read back; equal lines of the agent have one number.
func TestTable(t *testing.T) {
	rows := []row{
		cellsOf("5.10", "amd64", map[string]string{"owner table": "refused: no owner: the kernel is old", "kernel path": "refused: no tcx"}),
		cellsOf("6.1", "amd64", map[string]string{"kernel path": "refused: no tcx", "nftables": "no: no reply"}),
		cellsOf("6.12", "arm64", nil),
	}
	text := table(rows)
	for _, want := range []string{"| refused (1) | yes | yes | refused (2) |\n", "| no (3) | yes | yes | yes | refused (2) |\n", "1. `no owner: the kernel is old`\n", "2. `no tcx`\n3. `no reply`\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no %q:\n%s", want, text)
		}
	}
	if diff := cmp.Diff(rows, parseTable(text), cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}
	if got := table([]row{{"6.1", "amd64", nil}}); !strings.Contains(got, "| no (1) | no (1) |") || !strings.Contains(got, "1. `the machine ended before`") {
		t.Errorf("the table of a machine that reported nothing:\n%s", got)
	}
}

// TestWriteTable: rows of kernels that were not tried stay, rows of kernels that are no longer listed go.
func TestWriteTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.md")
	var all []row
	for _, k := range kernels() {
		all = append(all, cellsOf(k.version(), k.arch, map[string]string{"hand-over": "no: old"}))
	}
	old := append([]row{cellsOf("3.2", "amd64", nil)}, all...)
	if err := os.WriteFile(path, []byte("before\n"+tableBegin+"\n"+table(old)+"\n"+tableEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tried := cellsOf(all[1].kernel, all[1].arch, nil)
	if err := writeTable(path, []row{tried}); err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(all)
	want[1] = tried
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("before\n"+tableBegin+"\n"+table(want)+"\n"+tableEnd+"after\n", string(got)); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(path, []byte("no table"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeTable(path, nil); err == nil {
		t.Error("a document without a table was written")
	}
}

// TestDocument: the document has a row for each kernel, with no cell that fails, and explains each column.
func TestDocument(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", "kernels.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := parseTable(string(text))
	if len(rows) != len(kernels()) || len(merge(rows, nil)) != len(rows) {
		t.Errorf("the document has %d rows; run make kernels", len(rows))
	}
	for _, r := range rows {
		for c, cell := range r.cells {
			if strings.HasPrefix(cell, "no: ") {
				t.Errorf("Linux %s on %s: %s: %s", r.kernel, r.arch, c, cell)
			}
		}
	}
	for _, c := range columns() {
		if !regexp.MustCompile(`(?m)^\| (?:[\w-]+, )*` + c + `(?:, [\w-]+)* \| [^|]{20}`).Match(text) {
			t.Errorf("the document does not explain the column %s", c)
		}
	}
}

// TestColumns: the machines report the columns of the table, in its order.
func TestColumns(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("guest", "features.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\t\t\{"([^"]+)", \w`).FindAllSubmatch(source, -1) {
		names = append(names, string(m[1]))
	}
	if diff := cmp.Diff(columns(), names); diff != "" {
		t.Error(diff)
	}
}
