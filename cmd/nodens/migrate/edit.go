package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// editor changes a YAML document line by line, so that order, comments and layout of the rest stay.
type editor struct {
	lines []string // without line ends
	edits []lineEdit
}

// lineEdit replaces the lines from first to last, without last, whose indices are from 0.
type lineEdit struct {
	first, last int
	text        []string
}

// apply returns the lines with all edits.
func (e *editor) apply() []string {
	lines := slices.Clone(e.lines)
	slices.Reverse(e.edits) // of insertions before one line, the first one is made last
	slices.SortStableFunc(e.edits, func(a, b lineEdit) int { return cmp.Or(b.first-a.first, min(1, b.last-b.first)-min(1, a.last-a.first)) })
	for _, d := range e.edits {
		lines = slices.Replace(lines, d.first, d.last, d.text...)
	}
	return lines
}

// replace notes an edit.
func (e *editor) replace(first, last int, text []string) {
	e.edits = append(e.edits, lineEdit{first, last, text})
}

// undo forgets the edits after the first n, and returns false.
func (e *editor) undo(n int) bool {
	e.edits = e.edits[:n]
	return false
}

// mapping makes n what is says. It reports whether it could; if not, n has to be replaced as a whole.
func (e *editor) mapping(n *yaml.Node, is map[string]any) bool {
	before := len(e.edits)
	if n.Kind != yaml.MappingNode || n.Style&yaml.FlowStyle != 0 || len(n.Content) == 0 {
		return false
	}
	column, had := n.Content[0].Column-1, make(map[string]bool)
	end := 0
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		had[key.Value] = true
		first := key.Line - 1
		end = e.end(first, column, true)
		now, kept := is[key.Value]
		if kept {
			e.pair(key, value, now, end)
			continue
		}
		if strings.TrimSpace(e.lines[first][:key.Column-1]) != "" { // a dash is before it
			return e.undo(before)
		}
		e.replace(first, end, nil)
	}
	added := maps.Clone(is)
	maps.DeleteFunc(added, func(key string, _ any) bool { return had[key] })
	if len(added) > 0 {
		e.replace(end, end, render(added, column))
	}
	return true
}

// pair makes the value of a key, whose lines are before end, what is says.
func (e *editor) pair(key, value *yaml.Node, is any, end int) {
	if sameValue(value, is) || e.value(value, is) {
		return
	}
	first := key.Line - 1
	text := render(map[string]any{key.Value: is}, key.Column-1)
	text[0] = e.lines[first][:key.Column-1] + strings.TrimLeft(text[0], " ")
	if value.LineComment != "" && len(text) == 1 {
		text[0] += " " + value.LineComment
	}
	e.replace(first, end, text)
}

// value makes a value what is says, without the line of its key. It reports whether it could.
func (e *editor) value(n *yaml.Node, is any) bool {
	switch is := is.(type) {
	case map[string]any:
		return e.mapping(n, is)
	case []any:
		return e.sequence(n, is)
	case string:
		return e.literal(n, is)
	}
	return false
}

// literal replaces the lines of a literal block. It reports whether it could.
func (e *editor) literal(n *yaml.Node, is string) bool {
	body, ok := strings.CutSuffix(is, "\n")
	if n.Kind != yaml.ScalarNode || n.Style&yaml.LiteralStyle == 0 || !ok || strings.HasSuffix(body, "\n") || n.Line >= len(e.lines) ||
		!strings.HasSuffix(strings.TrimSpace(e.lines[n.Line-1]), "|") {
		return false
	}
	first := n.Line
	indent := indentOf(e.lines[first])
	var text []string
	for line := range strings.SplitSeq(body, "\n") {
		if line != "" {
			line = strings.Repeat(" ", indent) + line
		}
		text = append(text, line)
	}
	e.replace(first, first+len(strings.Split(strings.TrimSuffix(n.Value, "\n"), "\n")), text)
	return true
}

// sequence makes n what is says. It reports whether it could.
func (e *editor) sequence(n *yaml.Node, is []any) bool {
	before := len(e.edits)
	if n.Kind != yaml.SequenceNode || n.Style&yaml.FlowStyle != 0 || len(n.Content) == 0 || len(is) == 0 {
		return false
	}
	column := n.Column - 1
	end, next := 0, 0
	for _, item := range n.Content {
		first := item.Line - 1
		if !strings.HasPrefix(e.lines[first], strings.Repeat(" ", column)+"- ") {
			return e.undo(before)
		}
		end = e.end(first, column, false)
		at := slices.IndexFunc(is[next:], func(v any) bool { return sameItem(item, v) })
		if at < 0 {
			e.replace(first, end, nil)
			continue
		}
		e.insert(first, column, is[next:next+at])
		now := is[next+at]
		next += at + 1
		if !sameValue(item, now) && !e.value(item, now) {
			e.replace(first, end, render([]any{now}, column))
		}
	}
	e.insert(end, column, is[next:])
	return true
}

// insert inserts items of a sequence before a line.
func (e *editor) insert(before, column int, items []any) {
	if len(items) > 0 {
		e.replace(before, before, render(items, column))
	}
}

// end returns the index after the last line of the key or item that starts in line first, at column.
func (e *editor) end(first, column int, key bool) int {
	end := first + 1
	for i := end; i < len(e.lines); i++ {
		text := strings.TrimSpace(e.lines[i])
		in := indentOf(e.lines[i])
		switch {
		case text == "":
		case in > column, key && in == column && (text == "-" || strings.HasPrefix(text, "- ")):
			end = i + 1
		case strings.HasPrefix(text, "#"):
		default:
			return end
		}
	}
	return end
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// render returns v as YAML lines with an indentation.
func render(v any, column int) []string {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if enc.Encode(v) != nil || enc.Close() != nil {
		return nil // the result is compared with what it should be
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = strings.Repeat(" ", column) + line
		}
	}
	return lines
}

// sameItem reports whether an item of a sequence is v, perhaps with other fields: both have the same name.
func sameItem(n *yaml.Node, v any) bool {
	if sameValue(n, v) {
		return true
	}
	var was map[string]any
	is, ok := v.(map[string]any)
	return ok && n.Kind == yaml.MappingNode && n.Decode(&was) == nil && was["name"] != nil && was["name"] == is["name"]
}

// sameValue reports whether n has the value v.
func sameValue(n *yaml.Node, v any) bool {
	var was any
	return n.Decode(&was) == nil && sameJSON(was, v)
}

func sameJSON(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}
