package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const logPage = "docs/reference/log-fields.md"

// logLine is a line that the agent logs.
type logLine struct{ level, message, folder string }

// logSources are the lines and the keys of fields in the agent's sources.
type logSources struct {
	lines []logLine
	keys  map[string]string // where one of each is
	// dynamic are calls whose message is no literal.
	dynamic []string
}

// outageLevels are the levels of outages, by the folder that declares their messages.
var outageLevels = map[string]string{
	"kubernetes": "ERROR", "kubernetes/reflector": "ERROR", "server/dnstap": "WARN", "server/otlp": "WARN", "upstream": "WARN",
}

// readLogs collects what the agent logs.
func readLogs(t *testing.T) *logSources {
	t.Helper()
	s := &logSources{keys: make(map[string]string)}
	for _, source := range agentSources(t) {
		text, _ := document(t, source)
		file, err := parser.ParseFile(token.NewFileSet(), source, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				s.call(source, n)
			case *ast.CompositeLit:
				s.composite(source, n)
			}
			return true
		})
	}
	return s
}

var (
	logMethods = map[string]string{"Debug": "DEBUG", "Info": "INFO", "Warn": "WARN", "Error": "ERROR"}
	slogLevels = map[string]string{"LevelDebug": "DEBUG", "LevelInfo": "INFO", "LevelWarn": "WARN", "LevelError": "ERROR"}
	slogAttrs  = []string{"String", "Int", "Int64", "Uint64", "Any", "Bool", "Float64", "Duration", "Time"}
	fieldLists = []string{"args", "attrs"}
	fieldKey   = regexp.MustCompile(`^[a-z][a-z_]*$`)
)

// call collects the line and the keys of a call.
func (s *logSources) call(source string, call *ast.CallExpr) {
	name := ""
	var on ast.Expr
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		name, on = f.Sel.Name, f.X
	case *ast.Ident:
		name = f.Name
	}
	receiver, _ := on.(*ast.Ident)
	switch {
	case receiver != nil && receiver.Name == "slog":
		if slices.Contains(slogAttrs, name) {
			s.pairs(source, call.Args)
		}
	case on != nil && logMethods[name] != "" && len(call.Args) > 0:
		if message, ok := literal(call.Args[0]); ok {
			s.lines = append(s.lines, logLine{logMethods[name], message, path.Dir(source)})
			s.pairs(source, call.Args[1:])
		} else if receiver == nil || receiver.Name != "http" {
			s.dynamic = append(s.dynamic, source)
		}
	case on != nil && (name == "Log" || name == "LogAttrs") && len(call.Args) >= 3:
		if message, ok := literal(call.Args[2]); ok {
			s.lines = append(s.lines, logLine{levelOf(call.Args[1]), message, path.Dir(source)})
			s.pairs(source, call.Args[3:])
		} else {
			s.dynamic = append(s.dynamic, source)
		}
	case on != nil && (name == "With" || name == "Recover"):
		s.pairs(source, call.Args)
	case on != nil && name == "Fail" && len(call.Args) > 1:
		s.pairs(source, call.Args[1:])
	case on != nil && name == "log" && len(call.Args) > 3: // of package outage
		s.pairs(source, call.Args[3:])
	case name == "append" && len(call.Args) > 2:
		list, ok := call.Args[0].(*ast.Ident)
		made, also := call.Args[0].(*ast.CallExpr)
		if ok && slices.Contains(fieldLists, list.Name) || also && strings.HasSuffix(nameOf(made.Fun), "args") {
			s.pairs(source, call.Args[1:])
		}
	}
}

// nameOf returns the last name of a function.
func nameOf(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

// levelOf returns the name of a level, "" if it is a variable.
func levelOf(e ast.Expr) string {
	if f, ok := e.(*ast.SelectorExpr); ok {
		return slogLevels[f.Sel.Name]
	}
	return ""
}

// composite collects the messages of an outage, or the keys of a list of fields.
func (s *logSources) composite(source string, lit *ast.CompositeLit) {
	switch t := lit.Type.(type) {
	case *ast.SelectorExpr:
		if t.Sel.Name != "Messages" {
			return
		}
		for _, e := range lit.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			message, _ := literal(kv.Value)
			level := outageLevels[path.Dir(source)]
			if k, ok := kv.Key.(*ast.Ident); ok && k.Name != "Start" {
				continue // the page says of all outages that they have these lines
			}
			s.lines = append(s.lines, logLine{level, message, path.Dir(source)})
		}
	case *ast.ArrayType:
		if of, ok := t.Elt.(*ast.Ident); ok && of.Name == "any" && len(lit.Elts)%2 == 0 {
			s.pairs(source, lit.Elts)
		}
	}
}

// pairs collects the keys among keys and values.
func (s *logSources) pairs(source string, args []ast.Expr) {
	for i := 0; i < len(args); i++ {
		key, ok := literal(args[i])
		if !ok {
			continue // an attribute, or a list of fields
		}
		if fieldKey.MatchString(key) {
			s.keys[key] = source
		}
		i++ // its value
	}
}

// handWritten returns the cells of the page's tables about messages that are not generated, by
// message.
func handWritten(text string) map[string]string {
	known := make(map[string]string)
	for line := range strings.Lines(text) {
		cells, ok := row(line)
		if !ok || len(cells) < 2 {
			continue
		}
		message, ok := strings.CutPrefix(cells[0], "`")
		if ok {
			known[strings.Trim(message, "` ")] = cells[len(cells)-1]
		}
	}
	return known
}

// cell returns a message as code in a table.
func cell(message string) string {
	message = strings.ReplaceAll(message, "|", `\|`)
	if strings.Contains(message, "`") {
		return "`` " + message + " ``"
	}
	return "`" + message + "`"
}

// TestLogMessages: the page has each message of the agent by level, but for messages of events that
// explain themselves. Warnings and errors say what to do.
func TestLogMessages(t *testing.T) {
	s := readLogs(t)
	if len(s.lines) < 100 {
		t.Fatalf("only %d lines were found", len(s.lines))
	}
	text, _ := document(t, logPage)
	known := handWritten(text)
	byLevel := make(map[string][]string)
	for _, l := range s.lines {
		if l.message == "" {
			t.Errorf("a line of %s has no message", l.folder)
		}
		if l.level == "" {
			l.level = "other"
		}
		what := known[l.message]
		if what == "" && (l.level == "ERROR" || l.level == "WARN") {
			if !*update {
				t.Errorf("%s: say what to do when %q is logged, in the row that go test ./test/docs -run TestLogMessages -update writes", logPage, l.message)
			}
		}
		if what == "" && l.level != "ERROR" && l.level != "WARN" {
			continue
		}
		line := fmt.Sprintf("| %s | %s |\n", cell(l.message), what)
		if !slices.Contains(byLevel[l.level], line) {
			byLevel[l.level] = append(byLevel[l.level], line)
		}
	}
	for _, level := range []string{"ERROR", "WARN", "INFO", "DEBUG", "other"} {
		slices.Sort(byLevel[level])
		generated(t, logPage, "messages "+level, "| message | meaning, and what to do |\n|---|---|\n"+strings.Join(byLevel[level], ""))
	}
}

// TestLogDynamic: lines whose message is made when they are logged are known.
func TestLogDynamic(t *testing.T) {
	want := []string{"internal/outage/outage.go", "server/resolver/error_log.go", "server/resolver/query_log.go"}
	got := slices.Clone(readLogs(t).dynamic)
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("lines with other messages than literals are in %q, want %q", got, want)
	}
}

// TestLogFields: the page explains each key of the agent's log lines, and no other.
func TestLogFields(t *testing.T) {
	s := readLogs(t)
	text, _ := document(t, logPage)
	for _, key := range []string{"time", "level", "msg"} { // of every line
		s.keys[key] = "log/slog"
	}
	explained := make(map[string]bool)
	for _, r := range data(table(text, "field", "meaning")) {
		for name := range strings.SplitSeq(r[0], ", ") {
			key, _ := code(name)
			explained[key] = true
			if s.keys[key] == "" {
				t.Errorf("%s explains the field %s, which no line has", logPage, name)
			}
		}
	}
	for key, source := range s.keys {
		if !explained[key] {
			t.Errorf("%s does not explain the field %s, of %s", logPage, key, source)
		}
	}
}

// TestLogPlaceholders: the page explains each placeholder of the log directive.
func TestLogPlaceholders(t *testing.T) {
	source, _ := document(t, "server/resolver/log_format.go")
	var want, got []string
	for _, m := range regexp.MustCompile(`\t"(\{[^"]+\})": `).FindAllStringSubmatch(source, -1) {
		want = append(want, m[1])
	}
	text, _ := document(t, logPage)
	for _, r := range data(table(text, "placeholder", "value")) {
		name, _ := code(r[0])
		got = append(got, name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("%s explains the placeholders\n%q, want\n%q", logPage, got, want)
	}
}
