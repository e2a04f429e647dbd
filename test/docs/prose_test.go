package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// refused are phrases that pages don't use, and what to write instead.
var refused = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bsomebody\b`), "name who it is"},
	{regexp.MustCompile(`(?i)\b(?:comes?|came)\s+to\s+nothing\b`), "fails"},
	{regexp.MustCompile(`(?i)\bcomes?\s+to\s+no\s+terms\b|\bcame\s+to\s+no\s+terms\b`), "fails"},
	{regexp.MustCompile(`(?i)\b(?:that|those)\s+of\b`), "repeat the noun, or use the possessive form"},
	{regexp.MustCompile(`(?i)\bas\s+they\s+come\b`), "in the order of arrival"},
	{regexp.MustCompile(`(?i)\bmend(?:s|ed|ing)?\b`), "repair, restore"},
	{regexp.MustCompile(`(?i)\bbehind\s+(?:the|a)\s+clients?['’]?s?['’]?\s+backs?\b`), "in the background"},
	{regexp.MustCompile(`(?i)\bfurther\s+down\b`), "a link"},
	{regexp.MustCompile(`(?i)\b(?:pods?['’]s?|network)\s+links?\b`), "interface"},
}

// history are the pages that keep the words of their time, or quote others.
var history = []string{"CHANGELOG.md"}

// proseOf returns the names of the pages whose prose is checked.
func proseOf(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(documents(t), func(name string) bool {
		return slices.Contains(history, name)
	})
}

func TestRefusedPhrases(t *testing.T) {
	for _, name := range proseOf(t) {
		text, _ := document(t, name)
		text = withoutCode(text)
		for _, r := range refused {
			for _, at := range r.phrase.FindAllStringIndex(text, -1) {
				t.Errorf("%s:%d: %q: write %s", name, lineOf(text, at[0]), text[at[0]:at[1]], r.instead)
			}
		}
	}
}

// home is a path below a person's folder.
var home = regexp.MustCompile(`(?:^|[\s"'` + "`" + `(=:])(/(?:root|home|Users)/[^\s"'` + "`" + `)]+)`)

func TestNoPersonalPaths(t *testing.T) {
	for _, name := range documents(t) {
		text, _ := document(t, name)
		for _, at := range home.FindAllStringSubmatchIndex(text, -1) {
			t.Errorf("%s:%d: %s is a path of one machine", name, lineOf(text, at[2]), text[at[2]:at[3]])
		}
	}
}

// flagNames are the names of nodens' flags that have more than one letter, as the sources register
// them. Names that programs of Go have, too, are left out.
func flagNames(t *testing.T) []string {
	t.Helper()
	shared := []string{"help", "version", "v"}
	name := regexp.MustCompile(`^[a-z][a-z.-]{2,}$`)
	var names []string
	sources := files(t, func(f string) bool {
		return path.Dir(f) == "cmd/nodens" && strings.HasSuffix(f, ".go") && !strings.HasSuffix(f, "_test.go")
	})
	for _, source := range sources {
		text, _ := document(t, source)
		file, err := parser.ParseFile(token.NewFileSet(), source, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !regexp.MustCompile(`^(?:Func|BoolFunc|(?:String|Bool|Duration|Int|Uint|Float64|StringSlice|StringArray|Text)?Var|VarPF?|(?:String|Bool|Duration|Int)(?:Var)?P?)$`).MatchString(method.Sel.Name) {
				return true
			}
			for _, arg := range call.Args {
				if l, ok := arg.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if s, err := strconv.Unquote(l.Value); err == nil && name.MatchString(s) && !slices.Contains(shared, s) {
						names = append(names, s)
					}
					break
				}
			}
			return true
		})
	}
	if len(names) < 20 || !slices.Contains(names, "localip") {
		t.Fatalf("cmd/nodens has the flags %q only, or registers them in another form", names)
	}
	return names
}

// withoutOutput empties the lines of console fences that are not commands.
func withoutOutput(text string) string {
	var b strings.Builder
	console, more := false, false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			console = trimmed == "```console"
		case console && !more && !strings.HasPrefix(trimmed, "$ "):
			line = "\n"
		}
		more = console && strings.HasSuffix(trimmed, "\\")
		b.WriteString(line)
	}
	return b.String()
}

// TestFlagsHaveTwoDashes: pages write nodens' flags with two dashes. Lines about NodeLocal
// DNSCache, whose program is node-cache, may have one, and so may what commands print.
func TestFlagsHaveTwoDashes(t *testing.T) {
	var quoted []string
	for _, n := range flagNames(t) {
		quoted = append(quoted, regexp.QuoteMeta(n))
	}
	one := regexp.MustCompile(`(?:^|[\s"'` + "`" + `(\[])-((?:` + strings.Join(quoted, "|") + `)(?:$|[^a-z0-9-]))`)
	about := regexp.MustCompile(`NodeLocal|node-cache|one dash`)
	for _, name := range proseOf(t) {
		text, _ := document(t, name)
		for n, line := range strings.Split(withoutOutput(text), "\n") {
			if m := one.FindStringSubmatch(line); m != nil && !about.MatchString(line) {
				t.Errorf("%s:%d: -%s: write two dashes", name, n+1, m[1])
			}
		}
	}
}
