package scrape

import (
	"fmt"
	"strconv"
	"strings"
)

// Metrics are values by series: the name of a metric, with its labels in braces if it has some.
type Metrics map[string]float64

// Parse reads the text of /metrics. Timestamps are an error; agents write none.
func Parse(text string) (Metrics, error) {
	m := make(Metrics)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no metric: %w", line, err)
		}
		m[line[:space]] = v
	}
	return m, nil
}

// Sum adds up the series of a metric that have all the labels, each as NAME="VALUE"; 0 for none.
func (m Metrics) Sum(metric string, labels ...string) (sum float64) {
	for series, v := range m {
		name, set, _ := strings.Cut(series, "{")
		if name == metric && hasLabels(set, labels) {
			sum += v
		}
	}
	return sum
}

// hasLabels reports whether set, such as a="b",c="d"}, has the labels.
func hasLabels(set string, labels []string) bool {
	set = "," + strings.TrimSuffix(set, "}") + ","
	for _, l := range labels {
		if !strings.Contains(set, ","+l+",") {
			return false
		}
	}
	return true
}
