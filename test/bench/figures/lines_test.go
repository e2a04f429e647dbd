package figures

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLines: the drawing has a line for each series, with its points in the area between the axes,
// and a number at each tick.
func TestLines(t *testing.T) {
	l := Lines{Title: "a < b", Unit: "MiB", XTitle: "minutes", X: []float64{0, 30, 60}, Series: []Line{
		{"one", []float64{40, 41, 40}}, {"absent", nil}, {"two", []float64{0, 20, 10}},
	}}
	text := l.SVG()
	var lines, words []string
	for _, s := range shapes(t, text) {
		switch s.name {
		case "polyline":
			lines = append(lines, s.attr["class"])
			points := strings.Fields(s.attr["points"])
			if len(points) != len(l.X) {
				t.Errorf("%d points, want %d", len(points), len(l.X))
			}
			last := -1.0
			for _, p := range points {
				left, top, _ := strings.Cut(p, ",")
				x, errX := strconv.ParseFloat(left, 64)
				y, errY := strconv.ParseFloat(top, 64)
				if errX != nil || errY != nil || x <= last || x < linesLeft || x > Wide-linesRight || y < headerHeight || y > headerHeight+linesHeight {
					t.Errorf("point %q", p)
				}
				last = x
			}
		case "line":
			if pixels(t, s, "x1") == pixels(t, s, "x2") && pixels(t, s, "y1") == pixels(t, s, "y2") {
				t.Errorf("a line without a length: %v", s)
			}
		case "text":
			words = append(words, strings.TrimSpace(s.text))
		}
	}
	if strings.Join(lines, " ") != "l0 l2" {
		t.Errorf("lines %q", lines)
	}
	for _, want := range []string{"a < b, MiB", "one", "two", "minutes", "0", "60", "40"} {
		if !strings.Contains("\n"+strings.Join(words, "\n")+"\n", "\n"+want+"\n") {
			t.Errorf("the drawing lacks %q: %q", want, words)
		}
	}
	if slices.Contains(words, "absent") {
		t.Errorf("the legend has a series without values: %q", words)
	}
	if string(text) != string(l.SVG()) {
		t.Error("the same values give other bytes")
	}
	// Nothing to draw is no reason to fail.
	shapes(t, Lines{Title: "none"}.SVG())
	shapes(t, Lines{Title: "zeros", X: []float64{0}, Series: []Line{{"one", []float64{0}}}}.SVG())
}
