package figures

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Chart is a drawing with a row for each server and a mark for each series in it.
// A linear one has bars from zero; a logarithmic one has dots, because the length
// of a bar says nothing there.
type Chart struct {
	File, Title, Unit string
	Log               bool
	// Whole says that the values are counts, which are shown without decimals.
	Whole  bool
	Series []string
	Rows   []ChartRow
}

// ChartRow is a row: a value for each series.
type ChartRow struct {
	Label  string
	Values []Spread
}

// The measures of a drawing, in pixels. It is as wide as a page of text on GitHub
// and its letters are then as large as the page's.
const (
	Wide         = 820
	LeftMargin   = 130 // the longest server's name, in a letter seven pixels wide
	rightMargin  = 70  // a value of seven digits
	headerHeight = 56  // title and legend
	axisHeight   = 26  // the axis's numbers
	barHeight    = 12  // a bar, as high as its number's letters
	barGap       = 8
)

// style works on a light and on a dark page; a viewer that does not know the media
// query shows the light one. The series' colours have the same contrast to both.
const style = `text{font:12px sans-serif;fill:#24292f}.title{font-size:14px;font-weight:600}.axis,.value{font-size:11px}
.grid{stroke:#8c959f;stroke-opacity:.35}.range{stroke:#57606a}
.s0{fill:#2f81c5}.s1{fill:#d2752c}.s2{fill:#3f9a5b}.s3{fill:#a371d0}.s4{fill:#c8577e}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.range{stroke:#c9d1d9}}`

// SVG draws the chart. The same values give the same bytes.
func (c Chart) SVG() []byte {
	var b strings.Builder
	bars := len(c.Series)
	if c.Log {
		bars = 1 // the dots share a line
	}
	step := bars*barHeight + barGap
	bottom := headerHeight + len(c.Rows)*step
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", Wide, bottom+axisHeight, Wide, bottom+axisHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escape(c.Title), style)
	svgText(&b, 8, 18, "title", "start", c.Title+", "+c.Unit)
	c.legend(&b)
	a := c.axis()
	for _, tick := range a.ticks {
		x := a.x(tick)
		fmt.Fprintf(&b, `<line class="grid" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", px(x), headerHeight-4, px(x), bottom)
		svgText(&b, x, float64(bottom+16), "axis", "middle", strconv.FormatFloat(tick, 'f', -1, 64))
	}
	for i, row := range c.Rows {
		y := float64(headerHeight + i*step)
		svgText(&b, LeftMargin-8, y+float64(bars*barHeight)/2+4, "", "end", row.Label)
		for n, v := range row.Values {
			if c.Log {
				drawDot(&b, a, n, v, y)
			} else {
				drawBar(&b, a, n, v, y+float64(n*barHeight))
			}
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// legend names the series, if there are several.
func (c Chart) legend(b *strings.Builder) {
	if len(c.Series) < 2 {
		return
	}
	drawLegend(b, LeftMargin, c.Series)
}

// drawLegend names the series, from the position x on. It leaves out empty names.
func drawLegend(b *strings.Builder, x float64, series []string) {
	for n, name := range series {
		if name == "" {
			continue
		}
		fmt.Fprintf(b, `<rect class="s%d" x="%s" y="30" width="10" height="10"/>`+"\n", n, px(x))
		svgText(b, x+14, 39, "", "start", name)
		x += 14 + 20 + 7*float64(len(name)) // seven pixels a letter, and a gap
	}
}

// drawBar draws a value as a bar, with a line from its least to its most.
func drawBar(b *strings.Builder, a axis, n int, v Spread, y float64) {
	x := a.x(v.Median)
	fmt.Fprintf(b, `<rect class="s%d" x="%d" y="%s" width="%s" height="%d"/>`+"\n", n, LeftMargin, px(y), px(x-LeftMargin), barHeight-1)
	if v.Most > v.Least {
		fmt.Fprintf(b, `<line class="range" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", px(a.x(v.Least)), px(y+5.5), px(a.x(v.Most)), px(y+5.5))
	}
	svgText(b, max(x, a.x(v.Most))+4, y+9.5, "value", "start", a.number(v.Median))
}

// drawDot draws a value as a dot that tells its value to a pointer.
func drawDot(b *strings.Builder, a axis, n int, v Spread, y float64) {
	fmt.Fprintf(b, `<circle class="s%d" cx="%s" cy="%s" r="5"><title>%s</title></circle>`+"\n", n, px(a.x(v.Median)), px(y+barHeight/2), a.number(v.Median))
}

// axis maps values to pixels, and shows them as numbers.
type axis struct {
	log, whole bool
	least, end float64
	ticks      []float64
}

func (a axis) x(v float64) float64 {
	const room = Wide - LeftMargin - rightMargin
	if a.log {
		return LeftMargin + room*math.Log(max(v, a.least)/a.least)/math.Log(a.end/a.least)
	}
	return LeftMargin + room*v/a.end
}

// number is a value as text.
func (a axis) number(v float64) string {
	if a.whole {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return shortNumber(v)
}

// axis makes an axis on which every value of the chart has its place.
func (c Chart) axis() axis {
	least, most := math.Inf(1), 0.0
	for _, row := range c.Rows {
		for _, v := range row.Values {
			least, most = min(least, v.Median), max(most, v.Median, v.Most)
		}
	}
	if !(most > 0) {
		least, most = 1, 1 // nothing to draw, or nothing but zeros
	}
	if c.Log {
		a := axis{log: true, whole: c.Whole, least: math.Pow(10, math.Floor(math.Log10(max(least, most/1e6)))), end: math.Pow(10, math.Ceil(math.Log10(most)))}
		a.end = max(a.end, a.least*10)
		for t := a.least; t <= a.end*1.001; t *= 10 {
			a.ticks = append(a.ticks, t)
		}
		return a
	}
	return axis{whole: c.Whole, end: most, ticks: linearTicks(most)}
}

// linearTicks returns the numbers of an axis from 0 to most: steps of 1, 2 or 5 times a power of
// ten, of which four to ten fit.
func linearTicks(most float64) (ticks []float64) {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	switch n := most / step; {
	case n < 2:
		step /= 5
	case n < 5:
		step /= 2
	}
	for i := 0; float64(i)*step <= most*1.001; i++ {
		ticks = append(ticks, math.Round(float64(i)*step*1e6)/1e6)
	}
	return ticks
}

// shortNumber is a number with three digits that count.
func shortNumber(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func px(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func svgText(b *strings.Builder, x, y float64, class, anchor, words string) {
	fmt.Fprintf(b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, px(x), px(y), anchor, escape(words))
}

func escape(words string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(words)) // a Builder takes everything
	return b.String()
}

// PlotDir is where the drawings are, seen from the folder of the pages. Their names begin with
// plotPrefix.
const (
	PlotDir    = "../images"
	plotPrefix = "bench-"
)

// PlotFile is a drawing in a file, seen from the folder of the pages.
type PlotFile struct{ File, Title string }

// Draw writes the drawings to [PlotDir], seen from dir.
func Draw(charts []Chart, dir string) ([]PlotFile, error) {
	at := filepath.Join(dir, PlotDir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	var list []PlotFile
	for _, c := range charts {
		name := plotPrefix + c.File
		if err := os.WriteFile(filepath.Join(at, name), c.SVG(), 0o644); err != nil {
			return nil, err
		}
		list = append(list, PlotFile{PlotDir + "/" + name, c.Title})
	}
	return list, nil
}
