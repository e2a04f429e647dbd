package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestFenceLanguages: a fence's language tells a reader, and the other tests, what it is. Lines
// marked sh need neither a cluster nor a replaced word.
func TestFenceLanguages(t *testing.T) {
	languages := []string{"sh", "console", "corefile", "yaml", "json", "text"}
	programs := []string{"make", "dig", "go"}
	for _, name := range documents(t) {
		text, _ := document(t, name)
		for _, f := range fences(text) {
			if !slices.Contains(languages, f.language) {
				t.Errorf("%s:%d: language %q, want one of %v", name, f.line, f.language, languages)
			}
			if f.language != "sh" {
				continue
			}
			for line := range strings.Lines(f.text) {
				if program, _, _ := strings.Cut(strings.TrimSpace(line), " "); !slices.Contains(programs, program) {
					t.Errorf("%s:%d: %q does not start with one of %v; use console", name, f.line, line, programs)
				}
			}
		}
	}
}

// What commands name in the tree: targets of make, packages of Go, and the project's manifests.
var (
	makeTarget = regexp.MustCompile(`(?m)^(?:[$#] )?make ([a-z][a-z0-9-]*)`)
	goPackage  = regexp.MustCompile(`\bgo (?:run|test|build|vet)\b[^|&;\n]*? (\./[a-z][a-z0-9_/]*[a-z0-9])`)
	manifest   = regexp.MustCompile(`(?:^|[ =])(daemonset/(?:base|overlays|chart|monitoring|image|testdata|[a-z-]+\.yaml)[A-Za-z0-9_./-]*)`)
)

// TestCommandsExist: the targets, packages and manifests that commands name are there.
func TestCommandsExist(t *testing.T) {
	makefile, root := document(t, "Makefile")
	for _, name := range documents(t) {
		text, _ := document(t, name)
		for _, f := range fences(text) {
			if f.language != "sh" && f.language != "console" {
				continue
			}
			for _, m := range makeTarget.FindAllStringSubmatch(f.text, -1) {
				if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
					t.Errorf("%s:%d: the Makefile has no target %s", name, f.line, m[1])
				}
			}
			for _, m := range slices.Concat(goPackage.FindAllStringSubmatch(f.text, -1), manifest.FindAllStringSubmatch(f.text, -1)) {
				if _, err := os.Stat(filepath.Join(root, path.Clean(m[1]))); err != nil {
					t.Errorf("%s:%d: there is no %s", name, f.line, m[1])
				}
			}
		}
	}
}

// notRun is the comment before a console fence that is not run. The reason is required.
var notRun = regexp.MustCompile(`^<!-- not run: (\S.*\S) -->$`)

// step is a command of a console fence and the output shown for it.
type step struct{ command, output string }

// steps splits a console fence. A command begins with "$ ", and goes on while its lines end with
// a backslash.
func steps(text string) ([]step, error) {
	var list []step
	more := false
	for line := range strings.Lines(text) {
		command, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case more:
			list[len(list)-1].command += line
			more = strings.HasSuffix(line, "\\\n")
		case prompt:
			list = append(list, step{command: command})
			more = strings.HasSuffix(line, "\\\n")
		case len(list) == 0:
			return nil, fmt.Errorf("%q is before the first command, which begins with \"$ \"", line)
		default:
			list[len(list)-1].output += line
		}
	}
	return list, nil
}

// sameOutput reports whether a command printed what a page shows. A line "..." of the page
// stands for any number of lines, and "…" in a line for any text.
func sameOutput(shown, printed string) bool {
	var b strings.Builder
	b.WriteString("(?s)^")
	for line := range strings.Lines(shown) {
		if strings.TrimSpace(line) == "..." {
			b.WriteString("(?:[^\n]*\n)*?")
		} else {
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " \n")), "…", "[^\n]*") + ` *\n`)
		}
	}
	b.WriteString("$")
	return regexp.MustCompile(b.String()).MatchString(strings.TrimRight(printed, "\n") + "\n")
}

// runnable is a command line that the test may run: it reads files, and changes nothing. A pipe may
// lead to programs that only filter, and output may be discarded.
var (
	runnable = regexp.MustCompile(`^(?:sed [^|&;<>$` + "`" + `]*\| *)?(?:(?:bin/)?nodens|go run \./cmd/nodens)(?: [^|&;<>$` + "`" + `]*)?` +
		`(?:\| *(?:nodens|grep|head|tail|sort|wc|jq)\b[^|&;<>$` + "`" + `]*)*$`)
	discard = strings.NewReplacer("\\\n", " ", "2>&1", "", "2>/dev/null", "", "2> /dev/null", "", ">/dev/null", "", "> /dev/null", "", "\n", " ")
)

// savedAs is the comment before a fence that the page tells to save under a name.
var savedAs = regexp.MustCompile(`^<!-- file: ([A-Za-z][A-Za-z0-9.-]*) -->$`)

// consoleDir makes the folder where a page's commands run: everything in the tree's root is there,
// nodens as bin/nodens, and the files that the page tells to save.
func consoleDir(t *testing.T, root, bin string, list []fence) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != "bin" && name != ".git" {
			if err := os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if m := savedAs.FindStringSubmatch(f.before); m != nil {
			if err := os.WriteFile(filepath.Join(dir, m[1]), []byte(f.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// TestConsole runs each console fence in a folder like the tree's root, with nodens in PATH, and
// compares what is printed with what the page shows. A fence that can't be run here has a comment before it
// with the reason.
func TestConsole(t *testing.T) {
	var run, skipped int
	bin := "" // the folder of nodens, built for the first fence that runs
	for _, name := range documents(t) {
		text, root := document(t, name)
		for _, f := range fences(text) {
			if f.language != "console" {
				continue
			}
			if notRun.MatchString(f.before) {
				skipped++
				continue
			}
			list, err := consoleSteps(f.text)
			if err != nil {
				t.Errorf("%s:%d: %v", name, f.line, err)
				continue
			}
			if run++; bin == "" {
				bin = filepath.Dir(peer.Build(t, "nodens"))
			}
			t.Run(fmt.Sprintf("%s:%d", name, f.line), func(t *testing.T) {
				runConsole(t, consoleDir(t, root, bin, fences(text)), bin, list)
			})
		}
	}
	t.Logf("%d console fences are run, %d say why they are not", run, skipped)
}

// consoleSteps returns the commands of a fence that is run.
func consoleSteps(text string) ([]step, error) {
	list, err := steps(text)
	if err == nil && len(list) == 0 {
		err = errors.New("no command")
	}
	for _, s := range list {
		if !runnable.MatchString(discard.Replace(s.command)) {
			return nil, fmt.Errorf("this test runs only nodens and filters of its output, not %q; "+
				"write <!-- not run: REASON --> in the line before the fence, such as: needs a cluster", s.command)
		}
	}
	return list, err
}

// runConsole runs the commands of a fence one after the other.
func runConsole(t *testing.T, dir, bin string, list []step) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for _, s := range list {
		c := exec.CommandContext(ctx, "sh", "-c", s.command)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		switch {
		case s.output != "" && !sameOutput(s.output, string(out)):
			t.Errorf("%s printed:\n%s\nthe page shows:\n%s", s.command, out, s.output)
		case s.output == "" && err != nil:
			t.Errorf("%s: %v\n%s", s.command, err, out)
		}
	}
}

func TestSteps(t *testing.T) {
	got, err := steps("$ a \\\n    b\nc\n\nd\n$ e\n")
	if err != nil || len(got) != 2 || got[0] != (step{"a \\\n    b\n", "c\n\nd\n"}) || got[1] != (step{"e\n", ""}) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := steps("# a\n"); err == nil {
		t.Error("no error for a root prompt")
	}
}

func TestSameOutput(t *testing.T) {
	tests := []struct {
		shown, printed string
		want           bool
	}{
		{"a\nb\n", "a\nb", true},
		{"a\nb\n", "a \nb\n\n", true},
		{"a\nb\n", "a\nc\n", false},
		{"a\n", "a\nb\n", false},
		{"a\n...\nd\n", "a\nb\nc\nd\n", true},
		{"a\n...\nd\n", "a\nd\n", true},
		{"...\n", "a\nb\n", true},
		{"a.c\n", "abc\n", false},
		{"a … d\n", "a b c d\n", true},
		{"a … d\n", "a b\nd\n", false},
	}
	for _, tt := range tests {
		if got := sameOutput(tt.shown, tt.printed); got != tt.want {
			t.Errorf("%q, %q: %v", tt.shown, tt.printed, got)
		}
	}
}
