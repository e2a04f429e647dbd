package main

import (
	"testing"
)

func TestChoose(t *testing.T) {
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
		c, err := parseFilter(test.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.matchesName(test.workload) && c.server(server{name: test.serving}); got != test.want {
			t.Errorf("%q chooses %s of %s: %v", test.text, test.workload, test.serving, got)
		}
	}
	for _, text := range []string{"(", "/("} {
		if _, err := parseFilter(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
