package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const metricsPage = "docs/reference/metrics.md"

// metric is a metric of the agent, as the table in package app declares it.
type metric struct {
	name, kind, help string
	labels           []string
}

// agentMetrics returns the metrics of the table, in its order. They are declared by calls
// counter("NAME", "HELP", "LABEL"…), or gauge or histogram.
func agentMetrics(t *testing.T) (list []metric) {
	t.Helper()
	const source = "cmd/nodens/app/metrics_table.go"
	text, _ := document(t, source)
	file, err := parser.ParseFile(token.NewFileSet(), source, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if m, ok := declaredMetric(call); ok {
				list = append(list, m)
			}
		}
		return true
	})
	if len(list) < 50 {
		t.Fatalf("%s declares only %d metrics, or in another form", source, len(list))
	}
	return list
}

// declaredMetric returns the metric that a call declares.
func declaredMetric(call *ast.CallExpr) (metric, bool) {
	kind, ok := call.Fun.(*ast.Ident)
	if !ok || !slices.Contains([]string{"counter", "gauge", "histogram"}, kind.Name) {
		return metric{}, false
	}
	var args []string
	for _, arg := range call.Args {
		s, ok := literal(arg)
		if !ok {
			return metric{}, false
		}
		args = append(args, s)
	}
	return metric{name: args[0], kind: kind.Name, help: args[1], labels: args[2:]}, true
}

// literal returns the value of a string literal, or of a sum of literals.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, ok := literal(e.X)
		y, also := literal(e.Y)
		return x + y, ok && also && e.Op == token.ADD
	case *ast.ParenExpr:
		return literal(e.X)
	}
	return "", false
}

// metricsTable is the table of the metrics that want accepts.
func metricsTable(all []metric, want func(name string) bool) string {
	var b strings.Builder
	b.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range all {
		if !want(m.name) {
			continue
		}
		var labels []string
		for _, l := range m.labels {
			labels = append(labels, "`"+l+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, strings.Join(labels, ", "), strings.ReplaceAll(m.help, "|", `\|`))
	}
	return b.String()
}

// TestMetrics: the page has the agent's metrics with their HELP texts.
func TestMetrics(t *testing.T) {
	all := agentMetrics(t)
	own := func(name string) bool { return strings.HasPrefix(name, "nodens_") }
	nodecache := func(name string) bool { return strings.HasPrefix(name, "coredns_nodecache_") }
	generated(t, metricsPage, "metrics of CoreDNS", metricsTable(all, func(n string) bool { return !own(n) && !nodecache(n) }))
	generated(t, metricsPage, "metrics of NodeLocal DNSCache", metricsTable(all, nodecache))
	generated(t, metricsPage, "metrics of nodens", metricsTable(all, own))
}

// TestMetricLabels: the page explains each label of the metrics, and no other.
func TestMetricLabels(t *testing.T) {
	want := make(map[string]bool)
	for _, m := range agentMetrics(t) {
		for _, l := range m.labels {
			want[l] = true
		}
	}
	text, _ := document(t, metricsPage)
	got := make(map[string]bool)
	for _, r := range data(table(text, "label", "values")) {
		for cell := range strings.SplitSeq(r[0], ", ") {
			name, _ := code(cell)
			got[name] = true
			if !want[name] {
				t.Errorf("%s explains the label %s, which no metric has", metricsPage, cell)
			}
		}
	}
	for name := range maps.Keys(want) {
		if !got[name] {
			t.Errorf("%s does not explain the label %s", metricsPage, name)
		}
	}
}

// TestAbsentMetrics: the metrics of CoreDNS that the page calls absent are.
func TestAbsentMetrics(t *testing.T) {
	all := agentMetrics(t)
	text, _ := document(t, metricsPage)
	rows := data(table(text, "absent metric", "reason"))
	if len(rows) == 0 {
		t.Fatalf("%s has no table of absent metrics", metricsPage)
	}
	for _, r := range rows {
		for name := range strings.SplitSeq(r[0], ", ") {
			name, ok := code(name)
			if !ok || slices.ContainsFunc(all, func(m metric) bool { return m.name == name }) {
				t.Errorf("%s is not a name, or is not absent", name)
			}
		}
	}
}

// TestKernelResults: the page explains the results of nodens_kernel_path_queries_total.
func TestKernelResults(t *testing.T) {
	source, _ := document(t, "server/kernelpath/result.go")
	file, err := parser.ParseFile(token.NewFileSet(), "result.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	ast.Inspect(file, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if s, ok := literal(kv.Value); ok {
				want = append(want, s)
			}
		}
		return true
	})
	text, _ := document(t, metricsPage)
	var got []string
	for _, r := range data(table(text, "result", "the query")) {
		name, _ := code(r[0])
		got = append(got, name)
	}
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("%s explains the results %q, want %q", metricsPage, got, want)
	}
}

// metricName is a metric of nodens or CoreDNS in a text. Recording rules have a prefix with a
// colon.
var metricName = regexp.MustCompile(`\b(?:nodens|coredns)_(?:dns|http|tls|cache|kubernetes|netsetup|handovers|kernel|upstream|loop|config|dnstap|proxy|forward|health|reload|hosts|acl|panics|plugin|build|autopath|local|nodecache|dns64|trace)_[a-z0-9_]+\b`)

// TestNamedMetrics: pages name only metrics that the agent has, or that the page about metrics
// calls absent. Names that end in * or _ are prefixes.
func TestNamedMetrics(t *testing.T) {
	all := agentMetrics(t)
	absent, _ := document(t, metricsPage)
	_, absent, _ = strings.Cut(absent, "| absent metric |")
	for _, name := range proseOf(t) {
		text, _ := document(t, name)
		for _, at := range metricName.FindAllStringIndex(text, -1) {
			word := text[at[0]:at[1]]
			if at[0] > 0 && text[at[0]-1] == ':' {
				continue // a recording rule
			}
			known := strings.HasSuffix(word, "_") || strings.Contains(absent, "`"+word+"`") ||
				slices.ContainsFunc(all, func(m metric) bool { return isSeries(m, word) })
			if !known {
				t.Errorf("%s:%d: the agent has no metric %s", name, lineOf(text, at[0]), word)
			}
		}
	}
}

// isSeries reports whether a name is the metric's, or of a series of the histogram.
func isSeries(m metric, name string) bool {
	if m.kind != "histogram" {
		return name == m.name
	}
	suffix, ok := strings.CutPrefix(name, m.name)
	return ok && slices.Contains([]string{"", "_bucket", "_sum", "_count"}, suffix)
}
