package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestSample: the sample listens on --dns.port, prints what to try when it serves, and answers it.
func TestSample(t *testing.T) {
	p := peer.Ports(t, 2)
	metrics := fmt.Sprintf("127.0.0.1:%d", p[1])
	text, _, _ := strings.Cut(sampleText("", p[0], metrics, "", ""), "\nThree")
	sample := startProcess(t, "agent", nil, "sample", "-dns.port", fmt.Sprint(p[0]), "-prometheus-listen-address", metrics, "-page", "off")
	sample.AwaitLog(strings.TrimSpace(text))
	for name, want := range map[string]string{
		"web.shop.svc.cluster.local.": "10.96.7.1", "db-0.db.shop.svc.cluster.local.": "10.244.1.10",
		"dual.shop.svc.cluster.local.": "10.96.7.2",
	} {
		agenttest.Expect(t, p[0], name, want)
	}
	sample.end()
}

// TestSampleStatus: the how-to page shows what `nodens status` prints about the sample, but for numbers
// and names.
func TestSampleStatus(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := filepath.Join(t.TempDir(), "handover")
	sample := startProcess(t, "agent", nil, "sample", "-page", "off", "-handover-dir", dir, "-dns.port", fmt.Sprint(p[0]), "-prometheus-listen-address", fmt.Sprintf("127.0.0.1:%d", p[1]))
	sample.AwaitLog("nodens answers on")
	agenttest.Ask(t, p[0], "web.shop.svc.cluster.local.")
	page, err := readPage("docs/how-to/see-what-an-agent-does.md", "status --handover-dir ./handover\n")
	check.NoError(t, err)
	code, out, stderr := outcome(t, "status", "-handover-dir", dir)
	out, _, _ = strings.Cut(out, "\nLast warnings") // the machine's resolv.conf may cause some
	if code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	check.Equal(t, withoutNumbers(page), withoutNumbers(out), "the page differs")
	sample.end()
}

// TestSamplePods: the sample's pods ask, and are counted under their names.
func TestSamplePods(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := filepath.Join(t.TempDir(), "handover")
	sample := startProcess(t, "agent", nil, "sample", "-page", "off", "-handover-dir", dir, "-dns.port", fmt.Sprint(p[0]), "-prometheus-listen-address", fmt.Sprintf("127.0.0.1:%d", p[1]))
	sample.AwaitLog("nodens answers on")
	sample.Await("all pods in the table", func() bool {
		_, out, _ := outcome(t, "top", "-watch=false", "-handover-dir", dir)
		return strings.Contains(out, "shop/web-7d9c5b6f4-x2k8p ") && strings.Contains(out, "shop/checkout-5f6b7c8d9-m4q7z ") && strings.Contains(out, "search/indexer-0 ")
	})
	sample.end()
}

// TestSampleNode: the agent of the sample's node may be killed without an unanswered query; the cluster DNS answers until
// it is back. When the sample ends, nothing of the node is left.
func TestSampleNode(t *testing.T) {
	p := peer.Ports(t, 2)
	sample := startProcess(t, "agent", nil, "sample", "-page", "off", "-dns.port", fmt.Sprint(p[0]), "-prometheus-listen-address", fmt.Sprintf("127.0.0.1:%d", p[1]))
	printed := regexp.MustCompile(`(?m)^  nsenter -t (\d+) (-n.*?) sh -c .*\n  kill -9 (\d+)$`)
	sample.Await("the commands", func() bool { return printed.MatchString(sample.Log.String()) })
	found := printed.FindStringSubmatch(sample.Log.String())
	node := append([]string{"-t", found[1]}, strings.Fields(found[2])...)
	try := func(args ...string) (string, error) {
		out, err := exec.Command("nsenter", slices.Concat(node, []string{"dig", "+short", "+time=1", "+tries=15", "@" + sampleNodeAddr}, args)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	ask := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("%v: %v; log:\n%s", args, err, sample.Log)
		}
		return out
	}
	who := []string{"CH", "TXT", "version.bind"}
	if got := ask(who...); got != `"agent"` {
		t.Fatalf("%s answers, not the agent", got)
	}
	killedAgent, err := strconv.Atoi(found[3])
	check.NoError(t, err)
	check.NoError(t, syscall.Kill(killedAgent, syscall.SIGKILL))
	// dig is a process of the node: the kernel refuses or drops its queries between closing the agent's sockets and removing
	// its table. The agent is back after five seconds, dig's own timeout.
	sample.Await("an answer after the kill", func() bool { got, err := try(sampleNames[0]); return err == nil && got == "10.96.7.1" })
	byClusterDNS := 0
	sample.Await("the agent to be back", func() bool {
		if got := ask(sampleNames[0]); got != "10.96.7.1" {
			t.Errorf("the answer is %q", got)
		}
		if ask(who...) == `"cluster-dns"` {
			byClusterDNS++
		}
		return strings.Contains(sample.Log.String(), "The node's agent is back.")
	})
	if byClusterDNS == 0 {
		t.Error("the cluster DNS has answered nothing")
	}
	if got := ask(who...); got != `"agent"` {
		t.Errorf("then %s answers, not the agent", got)
	}
	sample.end()
	if supervisor, err := strconv.Atoi(found[1]); err != nil || syscall.Kill(supervisor, 0) == nil {
		t.Errorf("process %d, which is the node, still runs: %v", supervisor, err)
	}
}

// readPage returns the text of a document after the first occurrence of begin, up to the end of the fence.
func readPage(name, begin string) (string, error) {
	root, err := peer.Root()
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", err
	}
	_, text, ok := strings.Cut(string(page), begin)
	if !ok {
		return "", fmt.Errorf("%s does not have %q", name, begin)
	}
	text, _, _ = strings.Cut(text, "```")
	return text, nil
}

// withoutNumbers replaces the parts of a status that differ from machine to machine.
func withoutNumbers(text string) string {
	text = regexp.MustCompile(`(version|instance|node +) ?[^,\n]+|/\S+/Corefile`).ReplaceAllString(text, "$1")
	return strings.TrimSpace(regexp.MustCompile(`≤?\d[0-9a-zµ.%]*`).ReplaceAllString(text, "N"))
}

// TestSamplePortInUse: the error names the flags to choose other ports.
func TestSamplePortInUse(t *testing.T) {
	p := peer.Ports(t, 2)
	ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p[0]))
	check.NoError(t, err)
	defer ln.Close()
	code, stdout, stderr := outcome(t, "sample", "-dns.port", fmt.Sprint(p[0]), "-prometheus-listen-address", fmt.Sprintf("127.0.0.1:%d", p[1]))
	if code != exitError || !strings.Contains(stderr, "--dns.port PORT and --prometheus-listen-address") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if strings.Contains(stdout, "nodens answers") {
		t.Errorf("it claims to answer:\n%s", stdout)
	}
}

// TestSampleDocumented: the commands to paste in the tutorial are those that the sample prints,
// and so are README.md's, if it has some. Both name its address.
func TestSampleDocumented(t *testing.T) {
	text := sampleText("bin/nodens", samplePort, sampleMetrics, samplePage, "DIR")
	tutorial := filepath.Join("docs", "tutorials", "first-steps.md")
	want := linesWith(text, "dig ")
	for _, document := range []string{"README.md", tutorial} {
		got := digLines(t, document)
		if len(got) == 0 && document != tutorial {
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the commands in %s differ from those that `nodens sample` prints (-printed +document):\n%s", document, diff)
		}
	}
	for _, document := range []string{"README.md", tutorial} {
		if !strings.Contains(readDocument(t, document), fmt.Sprintf("127.0.0.1:%d", samplePort)) {
			t.Errorf("%s does not name the sample's port %d", document, samplePort)
		}
	}
	if !strings.Contains(readDocument(t, tutorial), "```text\n"+strings.TrimSpace(text)+"\n```\n") {
		t.Errorf("%s does not show what `nodens sample` prints:\n%s", tutorial, text)
	}
}

// readDocument returns the text of a document of this repository.
func readDocument(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", document))
	check.NoError(t, err)
	return string(text)
}

// digLines returns the lines that begin with dig in the sh blocks of a document.
func digLines(t *testing.T, document string) []string {
	t.Helper()
	var lines []string
	for i, part := range strings.Split(readDocument(t, document), "\n```") {
		if inside := i%2 == 1; inside {
			if body, ok := strings.CutPrefix(part, "sh\n"); ok {
				lines = append(lines, linesWith(body, "dig ")...)
			}
		}
	}
	return lines
}

// linesWith returns the lines of text that begin with prefix, without the spaces around them.
func linesWith(text, prefix string) []string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, prefix) })
}
