package harness

import (
	"testing"
)

func TestFilter(t *testing.T) {
	for _, test := range []struct {
		text              string
		workload, serving string
		want              bool
	}{
		{"", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0/echo|nodens$", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0/echo|nodens$", "cached A, 1,000 qps", "nodens, bare", false},
		{"TCP", "cached A, 1,000 qps", "nodens", false},
		{"/unbound", "misses", "unbound", true},
	} {
		c, err := ParseFilter(test.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.MatchesName(test.workload) && c.Server(Server{Name: test.serving}); got != test.want {
			t.Errorf("%q chooses %s of %s: %v", test.text, test.workload, test.serving, got)
		}
	}
	for _, text := range []string{"(", "/("} {
		if _, err := ParseFilter(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
