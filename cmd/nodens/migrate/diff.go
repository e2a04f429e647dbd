package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SourceFile is a file of objects.
type SourceFile struct{ Name, Text string }

// Diff returns the changes to files that give them the objects of a manifest, as a unified diff. Order, comments and layout of
// all else stay. An object that no file has is added to the file of the manifest's last object, the DaemonSet.
func Diff(files []SourceFile, manifest []byte) ([]byte, error) {
	all := Objects{kinds: append(slices.Clone(defaultKinds), "ServiceAccount", "ClusterRole", "ClusterRoleBinding")}
	if err := all.Read("the manifest", bytes.NewReader(manifest)); err != nil {
		return nil, err
	}
	edited := slices.Clone(files)
	var added []object
	last := len(files) - 1
	for _, obj := range all.list {
		at, err := editFiles(edited, obj)
		switch {
		case err != nil:
			return nil, err
		case at < 0:
			added = append(added, obj)
		default:
			last = at
		}
	}
	for _, obj := range added {
		text, err := marshalYAML(obj)
		if err != nil {
			return nil, err
		}
		edited[last].Text = strings.TrimSuffix(edited[last].Text, "\n") + "\n---\n" + string(text)
	}
	var out bytes.Buffer
	for i := range files {
		out.WriteString(unifiedDiff(files[i].Name, files[i].Text, edited[i].Text))
	}
	return out.Bytes(), nil
}

// editFiles makes the object in the last file that has it what obj says, and returns the index of that file; -1 if none has it.
func editFiles(files []SourceFile, obj object) (int, error) {
	for i := range slices.Backward(files) {
		docs := splitDocuments(files[i].Text)
		for j := range slices.Backward(docs) {
			text, found, err := editDocument(docs[j], obj)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", files[i].Name, err)
			}
			if !found {
				continue
			}
			if strings.EqualFold(filepath.Ext(files[i].Name), ".json") {
				return 0, fmt.Errorf("%s: --diff changes YAML only; convert the file, or take the manifest that migrate prints without --diff", files[i].Name)
			}
			docs[j] = text
			files[i].Text = strings.Join(docs, "")
			return i, nil
		}
	}
	return -1, nil
}

// splitDocuments splits YAML before the lines that begin documents.
func splitDocuments(text string) (docs []string) {
	var doc strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "---") && doc.Len() > 0 {
			docs = append(docs, doc.String())
			doc.Reset()
		}
		doc.WriteString(line)
	}
	return append(docs, doc.String())
}

// errEdit is a list whose item can't be edited.
var errEdit = errors.New("its layout can't be kept; take the manifest that migrate prints without --diff")

// editDocument makes the object in a document what obj says. A document whose layout can't be kept is written anew.
func editDocument(doc string, obj object) (text string, found bool, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(doc), &root); err != nil || len(root.Content) == 0 {
		return doc, false, err
	}
	n, inList := findObject(root.Content[0], obj)
	if n == nil {
		return doc, false, nil
	}
	if sameValue(n, obj) {
		return doc, true, nil
	}
	e := &editor{lines: strings.Split(strings.TrimSuffix(doc, "\n"), "\n")}
	if e.mapping(n, obj) {
		if text = strings.Join(e.apply(), "\n") + "\n"; hasObject(text, obj) {
			return text, true, nil
		}
	}
	if inList {
		return "", true, fmt.Errorf("%s: %w", obj.describe(), errEdit)
	}
	anew, err := marshalYAML(obj)
	return "---\n" + string(anew), true, err
}

// hasObject reports whether a document has the object as it is.
func hasObject(doc string, obj object) bool {
	var root yaml.Node
	if yaml.Unmarshal([]byte(doc), &root) != nil || len(root.Content) == 0 {
		return false
	}
	n, _ := findObject(root.Content[0], obj)
	return n != nil && sameValue(n, obj)
}

// findObject returns the node of an object in a document, which may be a list.
func findObject(n *yaml.Node, obj object) (found *yaml.Node, inList bool) {
	var tree map[string]any // nested maps have the type of this one
	if n.Kind != yaml.MappingNode || n.Decode(&tree) != nil {
		return nil, false
	}
	is := object(tree)
	if is.describe() == obj.describe() {
		return n, false
	}
	if !strings.HasSuffix(is.text("kind"), "List") {
		return nil, false
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value != "items" {
			continue
		}
		for _, item := range n.Content[i+1].Content {
			if found, _ := findObject(item, obj); found != nil {
				return found, true
			}
		}
	}
	return nil, false
}

// diffContext is the number of unchanged lines around a change.
const diffContext = 3

// unifiedDiff returns the changes from was to is in the format of diff -u, "" if there are none.
func unifiedDiff(name, was, is string) string {
	if was == is {
		return ""
	}
	a, b := strings.Split(strings.TrimSuffix(was, "\n"), "\n"), strings.Split(strings.TrimSuffix(is, "\n"), "\n")
	ops := diffLines(a, b)
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	for i := 0; i < len(ops); {
		if ops[i].mark == ' ' {
			i++
			continue
		}
		first, last := max(0, i-diffContext), i
		for j := i; j < len(ops) && j <= last+2*diffContext; j++ {
			if ops[j].mark != ' ' {
				last = j
			}
		}
		end := min(len(ops), last+1+diffContext)
		writeHunk(&out, ops[first:end])
		i = end
	}
	return out.String()
}

// diffLine is a line of a diff: ' ' in both texts, '-' in the old one, '+' in the new one. a and b are the lines before it.
type diffLine struct {
	mark byte
	text string
	a, b int
}

func writeHunk(out *strings.Builder, ops []diffLine) {
	was, is := 0, 0
	for _, o := range ops {
		if o.mark != '+' {
			was++
		}
		if o.mark != '-' {
			is++
		}
	}
	start := func(before, n int) int { return before + min(n, 1) }
	fmt.Fprintf(out, "@@ -%d,%d +%d,%d @@\n", start(ops[0].a, was), was, start(ops[0].b, is), is)
	for _, o := range ops {
		fmt.Fprintf(out, "%c%s\n", o.mark, o.text)
	}
}

// maxCells bounds the table of diffLines: beyond, the lines between the common beginning and end are replaced as a whole.
const maxCells = 16 << 20

// diffLines returns the shortest change from a to b: their longest common subsequence stays.
func diffLines(a, b []string) (ops []diffLine) {
	head, tail := commonEnds(a, b)
	i, j := 0, 0
	add := func(mark byte, lines ...string) {
		for _, text := range lines {
			ops = append(ops, diffLine{mark, text, i, j})
			i += min(1, int(mark^'+'))
			j += min(1, int(mark^'-'))
		}
	}
	add(' ', a[:head]...)
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	for common := commonLengths(x, y); common != nil && len(x) > 0 && len(y) > 0; {
		m, n := len(common)-1-len(x), len(common[0])-1-len(y)
		switch {
		case x[0] == y[0]:
			add(' ', x[0])
			x, y = x[1:], y[1:]
		case common[m+1][n] >= common[m][n+1]:
			add('-', x[0])
			x = x[1:]
		default:
			add('+', y[0])
			y = y[1:]
		}
	}
	add('-', x...)
	add('+', y...)
	add(' ', a[len(a)-tail:]...)
	return ops
}

// commonEnds returns how many lines a and b have in common at the beginning and at the end.
func commonEnds(a, b []string) (head, tail int) {
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

// commonLengths returns the length of the longest common subsequence of x[i:] and y[j:] for all i and j; nil beyond maxCells.
func commonLengths(x, y []string) [][]int32 {
	if len(x)*len(y) > maxCells {
		return nil
	}
	common := make([][]int32, len(x)+1)
	for i := range common {
		common[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}
