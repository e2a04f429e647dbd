package docs

import (
	"errors"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

// nonsense is no word of any directive.
const nonsense = "nothing-of-the-kind"

// usages returns the syntax of each option of a directive, by its name. The parser tells
// which there are in its error for an option that there is not, and how one is written in its
// error for an option that has a block of its own. head is the directive without its options.
func usages(t *testing.T, head string) map[string]string {
	t.Helper()
	list := make(map[string]string)
	if head == "rewrite" {
		for _, field := range allowed(t, block(head+" "+nonsense+" x")) {
			usage := advised(t, block(head+" "+field))
			list[field] = strings.TrimPrefix(usage, "rewrite [continue|stop] ")
		}
		return list
	}
	for _, option := range allowed(t, block(head+" { "+nonsense+" }")) {
		list[option] = advised(t, block(head+" { "+option+" {\nx\n} }"))
	}
	if strings.HasPrefix(head, "hosts ") {
		list["192.0.2.1"] = advised(t, block("hosts { 192.0.2.1 }"))
	}
	return list
}

// allowed returns the words that the error about [nonsense] in text names instead.
func allowed(t *testing.T, text string) []string {
	t.Helper()
	err := parse(text)
	var fault *config.ParseError
	if !errors.As(err, &fault) || fault.Word != nonsense {
		t.Fatalf("%s: %v, want a fault of %s", text, err, nonsense)
	}
	return fault.Allowed
}

// advised returns the syntax that the error about text says to write.
func advised(t *testing.T, text string) string {
	t.Helper()
	err := parse(text)
	if err == nil {
		t.Fatalf("%s: no error", text)
	}
	_, usage, ok := strings.Cut(err.Error(), "; write: ")
	if !ok {
		t.Fatalf("%s: %v, which does not say what to write", text, err)
	}
	return usage
}

// head returns a directive as its first accepted form writes it, without options.
func head(t *testing.T, directive string) string {
	t.Helper()
	for _, f := range forms(t, directive) {
		if !f.refused && directive != "rewrite" {
			head, _, _ := strings.Cut(f.written, " { ")
			return head
		}
	}
	return directive
}

// TestOptions compares the options on a directive's page with the parser's: those of the table
// of options, unless the directive has no effect, and those in the block of the syntax. Each one has an accepted form.
func TestOptions(t *testing.T) {
	for _, directive := range config.Directives() {
		text := directivePage(t, directive)
		list, head := forms(t, directive), head(t, directive)
		rows := optionsOf(t, directive)
		t.Run(directive, func(t *testing.T) {
			scratch(t)
			want := usages(t, head)
			var syntaxes []string
			for option, usage := range want {
				syntaxes = append(syntaxes, usage)
				if !slices.ContainsFunc(list, func(f form) bool { return !f.refused && uses(f.written, option) }) {
					t.Errorf("the option %q has no form", option)
				}
			}
			slices.Sort(syntaxes)
			var got []string
			for _, r := range rows {
				usage, ok := code(r[0])
				if !ok || len(r) != 4 {
					t.Errorf("the row %q does not have four cells with code in the first one", r)
				}
				got = append(got, usage)
			}
			slices.Sort(got)
			if d := cmp.Diff(syntaxes, got); d != "" && config.NoEffect(directive) == "" {
				t.Errorf("options of the parser and of the table (-parser +table):\n%s", d)
			}
			if directive == "rewrite" {
				return
			}
			if d := cmp.Diff(syntaxes, blockLines(text)); d != "" {
				t.Errorf("options of the parser and of the syntax (-parser +syntax):\n%s", d)
			}
		})
	}
}

// optionRows returns the rows of a page's table of options. A | in a cell is written \|.
func optionRows(text string) [][]string {
	rows := data(table(strings.ReplaceAll(text, `\|`, "\x00"), "option", "default", "bounds", "meaning"))
	for _, r := range rows {
		for i := range r {
			r[i] = strings.ReplaceAll(r[i], "\x00", "|")
		}
	}
	return rows
}

// optionsOf returns the rows of a directive's options. The page about grpc leaves out those that are the
// same as forward's.
func optionsOf(t *testing.T, directive string) [][]string {
	t.Helper()
	text := directivePage(t, directive)
	rows := optionRows(text)
	if directive != "grpc" {
		return rows
	}
	for _, r := range optionRows(directivePage(t, "forward")) {
		usage, _ := code(r[0])
		if slices.Contains(blockLines(text), usage) && !slices.ContainsFunc(rows, func(o []string) bool { return o[0] == r[0] }) {
			rows = append(rows, r)
		}
	}
	return rows
}

// blockLines returns the lines within braces of a directive's syntax, sorted.
func blockLines(text string) []string {
	var lines []string
	for _, f := range fences(text)[:1] {
		for line := range strings.Lines(f.text) {
			if strings.HasPrefix(line, "    ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// uses reports whether a form has the option, or the field of a rewrite rule.
func uses(written, option string) bool {
	if strings.HasPrefix(written, "rewrite ") {
		return slices.Contains(strings.Fields(written), option)
	}
	_, inner, _ := strings.Cut(strings.TrimSuffix(written, " }"), " { ")
	for line := range strings.SplitSeq(inner, "; ") {
		if name, _, _ := strings.Cut(line, " "); name == option {
			return true
		}
	}
	return false
}

// bounds is what the parser says of a number or a duration that is out of range.
var bounds = regexp.MustCompile(`out of range; allowed: (\S+) to (\S+)`)

// TestBounds gives each option a first argument below all bounds. The bounds that the parser
// names are those of the table.
func TestBounds(t *testing.T) {
	checked := 0
	for _, directive := range config.Directives() {
		head := head(t, directive)
		if directive == "rewrite" {
			continue
		}
		rows := optionsOf(t, directive)
		t.Run(directive, func(t *testing.T) {
			scratch(t)
			for _, r := range rows {
				usage, _ := code(r[0])
				name, _, _ := strings.Cut(usage, " ")
				for _, low := range []string{"-1000000h", "-9223372036854775808"} {
					err := parse(block(head + " { " + name + " " + low + " }"))
					if err == nil {
						continue
					}
					m := bounds.FindStringSubmatch(err.Error())
					if m == nil {
						continue
					}
					checked++
					if want := rangeText(m[1], m[2]); !strings.Contains(r[2], want) {
						t.Errorf("%s: the bounds are %q, want %q", usage, r[2], want)
					}
				}
			}
		})
	}
	if checked < 20 {
		t.Errorf("%d options have bounds, want 20 or more", checked)
	}
}

// TestArgumentBounds does the same for arguments that are not the first one of an option.
func TestArgumentBounds(t *testing.T) {
	texts := make(map[string]string)
	for _, directive := range config.Directives() {
		texts[directive] = directivePage(t, directive)
	}
	scratch(t)
	for _, written := range []string{
		"bufsize -1", "reload -1s", "reload 30s -1s", "dnstap /s full -1", "dnstap /s full 1 -1", "cache -1",
		"cache { success 1 -1 }", "cache { success 1 1 -1 }", "cache { prefetch 1 -1s }",
		"cache { serve_stale 1h immediate -1s }", "cache { serve_stale 1h immediate 1s -1s }", "cache { serve_stale 1h verify -1s }",
	} {
		directive, _, _ := strings.Cut(written, " ")
		err := parse(block(written))
		if err == nil {
			t.Errorf("%s: no error", written)
			continue
		}
		m := bounds.FindStringSubmatch(err.Error())
		if m == nil {
			t.Errorf("%s: %v, which names no bounds", written, err)
		} else if want := rangeText(m[1], m[2]); !strings.Contains(texts[directive], want) {
			t.Errorf("the text about %s does not have the bounds %q of %s", directive, want, written)
		}
	}
}

// rangeText writes a range as the tables do: "1 to 60,000", "1m to 24h", "0 or more".
func rangeText(low, high string) string {
	most := []string{strconv.Itoa(math.MaxInt32), (math.MaxInt32 * time.Second).String(), time.Duration(math.MaxInt64).String()}
	if slices.Contains(most, high) {
		return short(low) + " or more"
	}
	return short(low) + " to " + short(high)
}

// short drops the zero units of a duration, and groups the digits of a number.
func short(s string) string {
	if _, err := strconv.ParseInt(s, 10, 64); err == nil {
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	}
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// TestDefaults compares the meaning of a directive with that of the same one with an option at its
// default, for the defaults that are words of a Corefile.
func TestDefaults(t *testing.T) {
	compared := 0
	for _, directive := range config.Directives() {
		if slices.Contains([]string{"auto", "header", "rewrite", "rpz", "secondary", "timeouts", "transfer"}, directive) { // not without options; zero means the server's defaults
			continue
		}
		head := head(t, directive)
		rows := optionsOf(t, directive)
		t.Run(directive, func(t *testing.T) {
			scratch(t)
			without, err := read(block(head))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				usage, _ := code(r[0])
				value, ok := code(r[1])
				name, _, _ := strings.Cut(usage, " ")
				if !ok || name == "doh_method" { // not set means POST
					continue
				}
				with, err := read(block(head + " { " + name + " " + value + " }"))
				if err != nil {
					t.Errorf("%s: the default %q: %v", usage, value, err)
					continue
				}
				compared++
				if !reflect.DeepEqual(without.Blocks, with.Blocks) {
					t.Errorf("%s: %q is not the default", usage, value)
				}
			}
		})
	}
	if compared < 25 {
		t.Errorf("%d options have defaults, want 25 or more", compared)
	}
}
