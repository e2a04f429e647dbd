package page

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// The size of a chart's drawing. It is stretched to the width of the page.
const (
	chartWidth  = 2 * HistoryLength
	chartHeight = 120
)

// axisMinutes are the lengths of the horizontal axis. It is as long as the history needs, so that an agent that has just
// started has more than a few pixels.
var axisMinutes = [...]int{5, 10, 15, 30, 60}

// axisLength returns the length of the axis for so many samples: in minutes, and in samples.
func axisLength(samples int) (minutes, length int) {
	const perMinute = int(time.Minute / HistoryInterval)
	for _, minutes = range axisMinutes {
		if length = minutes * perMinute; samples <= length {
			break
		}
	}
	return minutes, length
}

// chart is a chart as the template shows it: a drawing with labels around it, and its values as a table.
type chart struct {
	ID, Title string
	// Summary is the drawing in words.
	Summary string
	Series  []series
	// Scale are the labels of the vertical axis, the highest first.
	Scale []string
	// Times are the labels of the horizontal axis.
	Times [3]string
	// Rows are means of five minutes, the newest first: a time, and a value for each series.
	Rows [][]string
}

// Width and Height return the size of the drawing.
func (chart) Width() int  { return chartWidth }
func (chart) Height() int { return chartHeight }

// series is one line or area of a chart.
type series struct {
	Name string
	// Color is the number of its color. Area says that the path encloses an area, Dashed that the
	// line is dashed.
	Color        int
	Area, Dashed bool
	Path         string
	Now          string // the last value

	values []float64 // of all samples; NaN without one
	fold   func([]float64) float64
}

// Class returns the classes of its elements.
func (s series) Class() string {
	class := fmt.Sprintf("c%d", s.Color)
	switch {
	case s.Area:
		class += " area"
	case s.Dashed:
		class += " line dashed"
	default:
		class += " line"
	}
	return class
}

// axis maps values to the height of the drawing.
type axis struct {
	labels []string
	y      func(float64) int
	format func(float64) string
}

// newCharts returns the charts of h.
func newCharts(h *History) []chart {
	return []chart{queriesChart(h), failuresChart(h), latencyChart(h), upstreamsChart(h)}
}

// rateOf returns the values of a series from counts of samples.
func rateOf(h *History, count func(*Sample) float64) []float64 {
	out := make([]float64, len(h.Samples))
	for i := range h.Samples {
		out[i] = count(&h.Samples[i]) / HistoryInterval.Seconds()
	}
	return out
}

// shareOf returns the values of a series as shares of the queries, NaN without queries.
func shareOf(h *History, count func(*Sample) uint32) []float64 {
	out := make([]float64, len(h.Samples))
	for i := range h.Samples {
		out[i] = float64(count(&h.Samples[i])) / h.Samples[i].queries() // 0/0 is NaN
	}
	return out
}

func queriesChart(h *History) chart {
	c := chart{ID: "queries", Title: "Queries per second, by source"}
	for i, s := range []struct {
		name  string
		count func(*Sample) float64
	}{
		{"cluster", func(s *Sample) float64 { return float64(s.Cluster) }},
		{"cache", func(s *Sample) float64 { return float64(s.Cache) }},
		{"upstream", func(s *Sample) float64 { return float64(s.Upstream) }},
		{"other", func(s *Sample) float64 { return float64(s.Others) }},
		{"in the kernel", func(s *Sample) float64 { return float64(s.Kernel) }},
	} {
		c.Series = append(c.Series, series{Name: s.name, Color: i + 1, Area: i < 4, Dashed: i == 4, values: rateOf(h, s.count)})
	}
	total := rateOf(h, (*Sample).queries)
	a := linear(highest(total), perSecond)
	c.draw(a)
	c.Summary = summary("queries per second", total, perSecond)
	return c
}

func failuresChart(h *History) chart {
	c := chart{ID: "failures", Title: "NXDOMAIN and SERVFAIL, share of queries", Series: []series{
		{Name: "NXDOMAIN", Color: 2, values: shareOf(h, func(s *Sample) uint32 { return s.NXDomain })},
		{Name: "SERVFAIL", Color: 6, values: shareOf(h, func(s *Sample) uint32 { return s.ServFail })},
	}}
	c.draw(linear(max(highest(c.Series[0].values), highest(c.Series[1].values), 0.01), percent))
	c.Summary = summary("NXDOMAIN", c.Series[0].values, percent) + "; " + summary("SERVFAIL", c.Series[1].values, percent)
	return c
}

func latencyChart(h *History) chart {
	p50, p99 := make([]float64, len(h.Samples)), make([]float64, len(h.Samples))
	for i := range h.Samples {
		p50[i], p99[i] = orNaN(h.Samples[i].P50), orNaN(h.Samples[i].P99)
	}
	c := chart{ID: "latency", Title: "Latency, upper bounds", Series: []series{
		{Name: "p50", Color: 1, values: p50, fold: highest}, {Name: "p99", Color: 3, values: p99, fold: highest},
	}}
	c.draw(logarithmic())
	c.Summary = summary("p99", p99, latency)
	return c
}

func orNaN(v float32) float64 {
	if v == 0 {
		return math.NaN()
	}
	return float64(v)
}

func upstreamsChart(h *History) chart {
	c := chart{ID: "exchanges", Title: "Exchanges per second, by upstream"}
	most := 0.0
	for i := range MaxUpstreams + 1 {
		values := rateOf(h, func(s *Sample) float64 { return float64(s.Exchanges[i]) })
		name := "others"
		if i < len(h.Upstreams) {
			name = h.Upstreams[i]
		} else if i < MaxUpstreams || highest(values) == 0 {
			continue
		}
		most = max(most, highest(values))
		c.Series = append(c.Series, series{Name: name, Color: i + 1, values: values})
	}
	c.draw(linear(most, perSecond))
	c.Summary = summary("exchanges per second", rateOf(h, func(s *Sample) (sum float64) {
		for _, n := range s.Exchanges {
			sum += float64(n)
		}
		return sum
	}), perSecond)
	return c
}

// highest returns the highest of values, 0 without any.
func highest(values []float64) (most float64) {
	for _, v := range values {
		if v > most { // false for NaN
			most = v
		}
	}
	return most
}

// mean returns the mean of values, without those that are NaN; 0 without any.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / float64(max(n, 1))
}

// summary says in words what a line shows.
func summary(name string, values []float64, format func(float64) string) string {
	if len(values) == 0 {
		return name + ": no samples yet"
	}
	return fmt.Sprintf("%s: %s now, %s at most in the last %s", name, format(last(values)), format(highest(values)),
		duration(time.Duration(len(values))*HistoryInterval))
}

// last returns the last of values, 0 if there is none or if it is NaN.
func last(values []float64) float64 {
	if len(values) == 0 || math.IsNaN(values[len(values)-1]) {
		return 0
	}
	return values[len(values)-1]
}

// linear returns an axis from 0 to a round number that is at least most.
func linear(most float64, format func(float64) string) axis {
	top := roundUp(most)
	return axis{
		labels: []string{format(top), format(top / 2), format(0)}, format: format,
		y: func(v float64) int { return chartHeight - int(math.Round(v/top*chartHeight)) },
	}
}

// roundUp returns the lowest of 1, 2 and 5 times a power of ten that is at least v; 1 for 0.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*unit {
			return factor * unit
		}
	}
	return 10 * unit
}

// logarithmic returns an axis from 125 µs to 8 s.
func logarithmic() axis {
	const lowest, doublings = 0.000125, 16
	return axis{
		labels: []string{"8 s", "32 ms", "0.1 ms"}, format: latency,
		y: func(v float64) int {
			n := math.Log2(min(max(v/lowest, 1), 1<<doublings))
			return chartHeight - int(math.Round(n/doublings*chartHeight))
		},
	}
}

// draw makes the paths, the labels and the rows. Areas are stacked: each path includes the areas before
// it, so the template paints them in reverse order.
func (c *chart) draw(a axis) {
	c.Scale = a.labels
	samples := 0
	if len(c.Series) > 0 {
		samples = len(c.Series[0].values)
	}
	minutes, length := axisLength(samples)
	step := chartWidth / length
	c.Times = [3]string{fmt.Sprintf("%d min ago", minutes), fmt.Sprintf("%g min", float64(minutes)/2), "now"}
	var stack []float64
	for i := range c.Series {
		s := &c.Series[i]
		s.Now = a.format(last(s.values))
		if !s.Area {
			s.Path = linePath(s.values, step, a.y)
			continue
		}
		if stack == nil {
			stack = make([]float64, len(s.values))
		}
		for j, v := range s.values {
			stack[j] += v
		}
		s.Path = areaPath(linePath(stack, step, a.y), step*len(stack))
	}
	c.Rows = c.rows(a.format)
}

// rows returns the means of five minutes, or what the series' fold returns.
func (c *chart) rows(format func(float64) string) (rows [][]string) {
	const each = int(5 * time.Minute / HistoryInterval)
	if len(c.Series) == 0 {
		return nil
	}
	for end := len(c.Series[0].values); end > 0; end -= each {
		from := max(0, end-each)
		age := time.Duration(len(c.Series[0].values)-end) * HistoryInterval
		row := []string{fmt.Sprintf("%d–%d min ago", age/time.Minute, (age+5*time.Minute)/time.Minute)}
		for _, s := range c.Series {
			fold := s.fold
			if fold == nil {
				fold = mean
			}
			row = append(row, format(fold(s.values[from:end])))
		}
		rows = append(rows, row)
	}
	return rows
}

// Painted returns the series in the order in which they are painted: lines over areas, and areas in
// reverse, because each covers those before it.
func (c chart) Painted() []series {
	list := slices.Clone(c.Series)
	slices.SortStableFunc(list, func(a, b series) int {
		if a.Area != b.Area {
			if a.Area {
				return -1
			}
			return 1
		}
		if a.Area {
			return b.Color - a.Color
		}
		return 0
	})
	return list
}

// linePath returns the path of values, each so wide, of which the last one is at the right edge. NaN is a gap.
func linePath(values []float64, step int, y func(float64) int) string {
	b := make([]byte, 0, 4*len(values))
	put := func(command byte, n ...int) {
		for _, n := range n {
			b = strconv.AppendInt(append(b, command), int64(n), 10)
			command = ' '
		}
	}
	at, run := 0, 0 // the current height, and the width of a flat part that is not yet written
	flush := func() {
		if run > 0 {
			put('h', run)
			run = 0
		}
	}
	gap := true
	for i, v := range values {
		if math.IsNaN(v) {
			flush()
			gap = true
			continue
		}
		switch height := y(v); {
		case gap:
			// A sample covers the time before it, so a single sample is a line, too.
			put('M', chartWidth-step*(len(values)-i), height)
			put('h', step)
			at, gap = height, false
		case height == at:
			run += step
		default:
			flush()
			put('l', step, height-at)
			at = height
		}
	}
	flush()
	return string(b)
}

// areaPath closes a path of that width to the horizontal axis.
func areaPath(line string, width int) string {
	if line == "" {
		return ""
	}
	return fmt.Sprintf("%sV%dH%dz", line, chartHeight, chartWidth-width)
}
