package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
)

// escapedBraces is a word in braces, behind [regexp.QuoteMeta].
var escapedBraces = regexp.MustCompile(`\\\{[a-z]+\\\}`)

// TestIncidentDocument: the first line of each recorded output on the page is a command of the suite. The page has
// all commands of the suite, except the ones that only the checks use.
func TestIncidentDocument(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/how-to/incident.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := make(map[string]bool)
	for _, fence := range recordedFence.FindAllStringSubmatch(string(text), -1) {
		name, content := fence[1], fence[2]
		shown[name] = true
		line, output, _ := strings.Cut(content, "\n")
		if output == "" {
			t.Errorf("%s has no output", name)
		}
		pattern := "^\\$ " + escapedBraces.ReplaceAllString(regexp.QuoteMeta(findCommand(name).line), `(?:'[^']+'|\S+)`) + "$"
		if !regexp.MustCompile(pattern).MatchString(line) {
			t.Errorf("%s shows %q, want %q", name, line, findCommand(name).line)
		}
	}
	if n := strings.Count(string(text), "written by test/e2e"); n != len(shown) {
		t.Errorf("%d fences are written by test/e2e, of which %d have a form that it finds", n, len(shown))
	}
	for _, c := range incidentCommands {
		if !shown[c.name] {
			t.Errorf("%s is not on the page", c.name)
		}
	}
}

func TestFillFences(t *testing.T) {
	const document = `# Title

<!-- not run: needs a cluster; written by test/e2e: status -->
` + "```console\n$ old\nold\n\nold\n```" + `

<!-- not run: needs a cluster; written by test/e2e: top -->
` + "```console\n```" + `

<!-- not run: needs a cluster; written by test/e2e: advise -->
` + "```console\n$ kept\n```" + `

<!-- not run: needs a cluster -->
` + "```console\n$ kept, too\n```\n"
	got := fillFences(document, map[string]string{"status": "$ a\nb\n", "top": "$ c\n\nd\n"})
	want := strings.NewReplacer("$ old\nold\n\nold\n", "$ a\nb\n", "top -->\n```console\n```", "top -->\n```console\n$ c\n\nd\n```").Replace(document)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestIncidentKeep(t *testing.T) {
	i := incidentTest{words: map[string]string{"agent": "pod-1", "change": "a: {b: 1}"}, outputs: make(map[string]string)}
	i.keep(&incidentCommand{name: "long", line: "kubectl exec {agent} -- x", most: 2}, "1\n2\n3\n")
	i.keep(&incidentCommand{name: "short", line: "kubectl patch --patch {change}", most: 2}, "1\n2\n\n")
	want := map[string]string{"long": "$ kubectl exec pod-1 -- x\n1\n2\n...\n", "short": "$ kubectl patch --patch 'a: {b: 1}'\n1\n2\n"}
	if d := cmp.Diff(want, i.outputs); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestParseLookup(t *testing.T) {
	for line, want := range map[string][]string{
		"host a = 192.0.2.1 192.0.2.2 2001:db8::1\n": {"192.0.2.1", "192.0.2.2"},
		"host a ! none\n": nil,
	} {
		if got, err := parseLookup(line); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%q: %v, %v; want %v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "host a ! again\n"} {
		if got, err := parseLookup(line); err == nil {
			t.Errorf("%q: %v, want an error", line, got)
		}
	}
}

func TestTailed(t *testing.T) {
	const selected = `{"selected": {"addresses": ["10.0.0.1"]}}`
	query := func(pod, search string) string {
		return `{"query": {"namespace": "shop", "pod": "` + pod + `", "searchPath": "` + search + `"}}`
	}
	var n tailed
	if _, err := n.add(query("web", ""), "shop", "web"); err == nil {
		t.Error("no error for a query before the selection")
	}
	lines := []string{selected}
	for range leastTailed {
		lines = append(lines, query("web", "waste"), query("web", "followed"))
	}
	for i, line := range lines {
		more, err := n.add(line, "shop", "web")
		if err != nil || more != (i < len(lines)-1) {
			t.Fatalf("line %d: %t, %v", i, more, err)
		}
	}
	if _, err := n.add(query("db", ""), "shop", "web"); err == nil {
		t.Error("no error for a query of another pod")
	}
}

func TestWasteSeen(t *testing.T) {
	row := func(w askingWorkload, queries, waste uint64) report.ClusterClient {
		return report.ClusterClient{Client: report.Client{
			Kind: "pod", Namespace: w.namespace, Workload: w.name, Window: report.ClientCounts{Queries: queries, Waste: waste},
		}}
	}
	for name, c := range map[string]struct {
		rows []report.ClusterClient
		ok   bool
	}{
		"none":            {[]report.ClusterClient{row(checkout, 100, 4), row(fraud, 1000, 0), row(indexer, 10, 10)}, true},
		"too much":        {[]report.ClusterClient{row(checkout, 100, 5), row(fraud, 1000, 0)}, false},
		"too few queries": {[]report.ClusterClient{row(checkout, 99, 0), row(fraud, 1000, 0)}, false},
		"one is missing":  {[]report.ClusterClient{row(checkout, 100, 0)}, false},
	} {
		if seen, err := wasteSeen(c.rows, checkout, fraud); (err == nil) != c.ok {
			t.Errorf("%s: %q, %v", name, seen, err)
		}
	}
}

func TestRowHeads(t *testing.T) {
	const page = `<tbody id="clients-rows"><tr><th scope="row">other</th></tr></tbody>
<tbody id="waste-rows"><tr><th scope="row"><a href="/">a &amp; b</a></th><td>1</td></tr>
<tr><th scope="row">c</th></tr></tbody><tbody id="names-rows"><tr><th scope="row">d</th></tr></tbody>`
	if got, want := rowHeads(page, "waste"), []string{"a & b", "c"}; !cmp.Equal(want, got) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := rowHeads(page, "slow"); got != nil {
		t.Errorf("%q for a table that is not there", got)
	}
}
