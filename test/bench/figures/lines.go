package figures

import (
	"fmt"
	"strconv"
	"strings"
)

// Lines is a drawing of values over time. The axis of the values begins at zero.
type Lines struct {
	Title, Unit string    // without a unit the values are counts
	XTitle      string    // of the other axis, with its unit
	X           []float64 // in ascending order, from 0
	Series      []Line
}

// Line is a value for each X. A line without values keeps its colour free, so that drawings of the
// same series have the same colours.
type Line struct {
	Label  string
	Values []float64
}

// The measures of a drawing of lines, in pixels.
const (
	linesHeight = 200 // of the area with the lines
	linesLeft   = 60  // the numbers of the axis
	linesRight  = 20
	linesAxis   = 44 // the numbers and the title of the other axis
)

// linesStyle has the colours of the series in style, for lines.
const linesStyle = `
polyline{fill:none;stroke-width:1.5;stroke-linejoin:round}
.l0{stroke:#2f81c5}.l1{stroke:#d2752c}.l2{stroke:#3f9a5b}.l3{stroke:#a371d0}.l4{stroke:#c8577e}`

// SVG draws the lines. The same values give the same bytes.
func (l Lines) SVG() []byte {
	var b strings.Builder
	const height = headerHeight + linesHeight + linesAxis
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", Wide, height, Wide, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s%s</style>\n", escape(l.Title), style, linesStyle)
	title := l.Title
	if l.Unit != "" {
		title += ", " + l.Unit
	}
	svgText(&b, 8, 18, "title", "start", title)
	names := make([]string, len(l.Series))
	most, last := 0.0, 0.0
	for i, s := range l.Series {
		if len(s.Values) > 0 {
			names[i] = s.Label
		}
		for _, v := range s.Values {
			most = max(most, v)
		}
	}
	if n := len(l.X); n > 0 {
		last = l.X[n-1]
	}
	drawLegend(&b, linesLeft, names)
	x, y := l.axes(&b, most, last)
	for n, s := range l.Series {
		if len(s.Values) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<polyline class="l%d" points="`, n)
		for i, v := range s.Values {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(px(x(l.X[i])) + "," + px(y(v)))
		}
		b.WriteString("\"/>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// axes draws both axes and returns the positions of values on them.
func (l Lines) axes(b *strings.Builder, most, last float64) (x, y func(float64) float64) {
	rows, columns := linearTicks(max(most, 1)), linearTicks(max(last, 1))
	const bottom, width = headerHeight + linesHeight, Wide - linesLeft - linesRight
	// A line at the top of the axis is not on its edge.
	top, end := max(most*1.05, rows[len(rows)-1]), max(last, 1)
	y = func(v float64) float64 { return bottom - linesHeight*v/top }
	x = func(v float64) float64 { return linesLeft + width*v/end }
	for _, tick := range rows {
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%[2]s"/>`+"\n", linesLeft, px(y(tick)), linesLeft+width)
		svgText(b, linesLeft-6, y(tick)+4, "axis", "end", strconv.FormatFloat(tick, 'f', -1, 64))
	}
	for _, tick := range columns {
		fmt.Fprintf(b, `<line class="grid" x1="%s" y1="%d" x2="%[1]s" y2="%[3]d"/>`+"\n", px(x(tick)), headerHeight, bottom)
		svgText(b, x(tick), bottom+16, "axis", "middle", strconv.FormatFloat(tick, 'f', -1, 64))
	}
	svgText(b, linesLeft+width/2, bottom+36, "", "middle", l.XTitle)
	return x, y
}
