package figures

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

// shape is an element of a drawing with its attributes.
type shape struct {
	name string
	attr map[string]string
	text string
}

// shapes reads a drawing, which must be well-formed.
func shapes(t *testing.T, text []byte) []shape {
	t.Helper()
	var list []shape
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		switch e := token.(type) {
		case xml.StartElement:
			s := shape{name: e.Name.Local, attr: map[string]string{}}
			for _, a := range e.Attr {
				s.attr[a.Name.Local] = a.Value
			}
			list = append(list, s)
		case xml.CharData:
			list[max(len(list)-1, 0)].text += string(e)
		}
	}
}

func pixels(t *testing.T, s shape, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s.attr[name], 64)
	if err != nil {
		t.Errorf("%s of %v: %v", name, s, err)
	}
	return v
}

func TestBars(t *testing.T) {
	c := Chart{Title: "a < b & c", Unit: "µs", Series: []string{"one", "two"}, Rows: []ChartRow{
		{"nodens", []Spread{{Median: 2, Least: 1, Most: 3}, SpreadOf([]float64{4})}},
		{"<CoreDNS>", []Spread{SpreadOf([]float64{8}), {}}},
	}}
	text := c.SVG()
	var widths []float64
	words := ""
	for _, s := range shapes(t, text) {
		if s.name == "rect" && s.attr["x"] == strconv.Itoa(LeftMargin) {
			widths = append(widths, pixels(t, s, "width"))
		}
		words += s.text + "\n"
	}
	if len(widths) != 4 || widths[1] != 2*widths[0] || widths[2] != 4*widths[0] || widths[3] != 0 {
		t.Errorf("bars of 2, 4, 8 and 0 are %v wide", widths)
	}
	for _, want := range []string{"a < b & c, µs", "nodens", "<CoreDNS>", "one", "two", "2.00", "8.00"} {
		if !strings.Contains(words, want) {
			t.Errorf("the drawing lacks %q:\n%s", want, text)
		}
	}
	if !bytes.Equal(text, c.SVG()) {
		t.Error("the same values give another drawing")
	}
}

// TestDots holds that a power of ten is equally far everywhere, and that nothing
// lies outside.
func TestDots(t *testing.T) {
	c := Chart{Log: true, Series: []string{"p50", "p99", "p99.9"}, Rows: []ChartRow{{"x", []Spread{SpreadOf([]float64{20}), SpreadOf([]float64{200}), SpreadOf([]float64{20000})}}}}
	var at []float64
	for _, s := range shapes(t, c.SVG()) {
		if s.name == "circle" {
			at = append(at, pixels(t, s, "cx"))
		}
	}
	if len(at) != 3 {
		t.Fatalf("%d dots, want 3", len(at))
	}
	if d := (at[2] - at[1]) - 2*(at[1]-at[0]); d < -0.2 || d > 0.2 || at[0] < LeftMargin || at[2] > Wide-rightMargin {
		t.Errorf("20, 200 and 20,000 are at %v", at)
	}
}

// TestAxis holds that there are numbers on every axis, and not too many, and that
// every value has a place on it.
func TestAxis(t *testing.T) {
	for _, most := range []float64{0, 1e-3, 0.99, 1, 1.01, 1.99, 2, 4.9, 5, 9.99, 10, 123456} {
		for _, log := range []bool{false, true} {
			a := Chart{Log: log, Rows: []ChartRow{{"", []Spread{SpreadOf([]float64{most})}}}}.axis()
			if n := len(a.ticks); n < 2 || n > 11 {
				t.Errorf("%g, log %v: the ticks are %v", most, log, a.ticks)
			}
			if x := a.x(most); !(x >= LeftMargin && x <= Wide-rightMargin+0.1) {
				t.Errorf("%g, log %v: drawn at %g", most, log, x)
			}
		}
	}
}
