// Inside the package: it uses query, which expression_test.go has.

package expression

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// script makes a script of lines: variables as NAME = EXPRESSION, and conditions.
func script(t *testing.T, lines string) (*Script, error) {
	t.Helper()
	s := new(Script)
	for line := range strings.SplitSeq(lines, "; ") {
		name, text, ok := strings.Cut(line, " = ")
		if !ok {
			if err := s.AddCondition(line); err != nil {
				return nil, err
			}
			continue
		}
		if err := s.AddVariable(name, text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// TestScript: variables use those before them and the groups; all conditions must be true.
func TestScript(t *testing.T) {
	groups := map[string]string{"0": "ip-7.", "1": "7", "n": "7"}
	for _, tt := range []struct{ lines, want string }{
		{"a = 1 + 2", "map[a:3] true"},
		{"a = group('n'); b = int(a) * 2; b == 14", "map[a:7 b:14] true"},
		{"a = group(1); a != '7'", "map[a:7] false"},
		{"group('none') == ''; group(true) == ''; name() == 'www.example.org.'", "map[] true"},
		{"a = nil; b = a == nil; b", "map[a:<nil> b:true] true"},
		{"a = [1, 'x']; len(a) == 2 && a[1] == 'x'", "map[a:[1 x]] true"},
		{"a = group('n'); a == '8'; int('x') == 1", "map[a:7] false"}, // the second condition is not evaluated
		{"a = int('x')", "variable a: "},
		{"int(group('none')) == 1", "expression: "},
	} {
		s, err := script(t, tt.lines)
		if err != nil {
			t.Errorf("%s: %v", tt.lines, err)
			continue
		}
		values, holds, err := s.Run(&query{name: "www.example.org."}, groups)
		got := fmt.Sprint(values, " ", holds)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tt.want) || err == nil && got != tt.want {
			t.Errorf("%s: %s, want %s", tt.lines, got, tt.want)
		}
	}
	var none *Script
	if values, holds, err := none.Run(nil, nil); values != nil || !holds || err != nil {
		t.Errorf("no script: %v, %t, %v", values, holds, err)
	}
}

// TestScriptErrors: names that are reserved, and expressions that are none.
func TestScriptErrors(t *testing.T) {
	var got []string
	for _, lines := range []string{"a-b = 1", "name = 1", "group = 1", "len = 1", "true = 1", "in = 1", "a = 1; a = 2", "a = nil; a = 2", "a = (", "a = b", "1 + 1", "a == 1; a = 1"} {
		_, err := script(t, lines)
		if err == nil {
			t.Errorf("%s: no error", lines)
			continue
		}
		text, _, _ := strings.Cut(err.Error(), ";")
		got = append(got, text)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", lines, err)
		}
	}
	want := []string{
		`"a-b" is no name of a variable`, `the name "name" is reserved`, `the name "group" is reserved`, `the name "len" is reserved`,
		`the name "true" is reserved`, `the name "in" is reserved`,
		`the variable "a" is set already`, `the variable "a" is set already`,
	}
	if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if s := new(Script); s.AddCondition(strings.Repeat("1+", 5000)+"1 == 1") == nil || s.Len() != 0 {
		t.Error("a long expression is accepted")
	}
}
