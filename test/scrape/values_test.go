package scrape_test

import (
	"testing"

	"github.com/nodens-dns/nodens/test/scrape"
)

// TestSum: the series of one metric that have all labels, whose values may have spaces and braces.
func TestSum(t *testing.T) {
	m, err := scrape.Parse("# HELP a_total x\n# TYPE a_total counter\na_total{x=\"1\",y=\"a b}\"} 2\na_total{x=\"11\",y=\"c\"} 3\na_total_more 5\nb 1e+06\n\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		metric string
		labels []string
		want   float64
	}{
		{"a_total", nil, 5}, {"a_total", []string{`x="1"`}, 2}, {"a_total", []string{`y="a b}"`, `x="1"`}, 2}, {"a_total", []string{`x="2"`}, 0},
		{"a_total_more", nil, 5}, {"b", nil, 1e6}, {"none", nil, 0},
	} {
		if got := m.Sum(c.metric, c.labels...); got != c.want {
			t.Errorf("%s %q: %v, want %v", c.metric, c.labels, got, c.want)
		}
	}
	if _, err := scrape.Parse("a one\n"); err == nil {
		t.Error("a word counts as a value")
	}
}
