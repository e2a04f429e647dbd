//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// adviceReplies are an agent's replies, with a Deployment that wastes 300 of 500 queries.
func adviceReplies(waste uint64) map[string]any {
	client := &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: "web-1"}
	header := report.Header{SchemaVersion: 1, Node: "node-1", Instance: "0a"}
	names, parents := report.Names{Header: header, Topic: "client"}, report.Names{Header: header, Topic: "waste"}
	for _, domain := range []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."} {
		names.Names = append(names.Names, report.Name{Name: "www.example.com." + domain, Client: client, Queries: 100})
		parents.Names = append(parents.Names, report.Name{Name: "example.com." + domain, Queries: 100})
	}
	clients := report.Clients{Header: header, By: "workload", Window: "1h", WindowSeconds: 100, SinceSeconds: 100, Clients: []report.Client{
		{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", QueriesPerSecond: 5, Window: report.ClientCounts{Queries: 500, Waste: waste}},
		{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "db", QueriesPerSecond: 5, Window: report.ClientCounts{Queries: 500}},
		{Kind: "host", QueriesPerSecond: 5, Window: report.ClientCounts{Queries: 500, Waste: 500}},
	}}
	upstreams := report.Upstreams{Header: header, Forwards: []report.Forward{}}
	return map[string]any{"/upstreams": upstreams, "/clients?by=workload&window=1h": clients, "/names?topic=client&window=1h": names, "/names?topic=waste&window=1h": parents}
}

// adviceAgent answers with replies at the socket whose path it returns.
func adviceAgent(t *testing.T, replies map[string]any) string {
	t.Helper()
	return topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		reply, ok := replies[r.URL.String()]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(reply)
	})
}

const adviceText = `
WORKLOAD  QPS   WASTE  CHANGE                    SAVES          NAMES
shop/web  5.0   60.0%  ndots 2                   3.0/s (60.0%)  www.example.com 100.0%
                       ask for www.example.com.  3.0/s (60.0%)
(all)     10.0  30.0%  autopath                  3.0/s (30.0%)
` + howText

const howText = `
ndots N: in the pod template, dnsConfig: {options: [{name: ndots, value: "N"}]}
ask for NAME.: in the application's configuration, the name with a dot at the end; * stands for any label
autopath: in the Corefile, autopath @kubernetes next to the kubernetes directive
`

// TestAdvise: the table, and what there is without waste.
func TestAdvise(t *testing.T) {
	socket := adviceAgent(t, adviceReplies(300))
	code, out, stderr := outcome(t, "advise", "-o", "wide", "--admin-socket", socket)
	want := "node node-1: 1000 queries of pods in the last 1m40s, of which 30.0% are search waste\n" + adviceText
	if d := cmp.Diff(squeeze(want), squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	var a report.Advice
	code, out, _ = outcome(t, "advise", "-o", "yaml", "--admin-socket", socket)
	if err := yaml.UnmarshalStrict([]byte(out), &a); err != nil || code != 0 || a.SchemaVersion != 1 || a.Workloads[0].Changes[0].Ndots != 2 || a.SinceSeconds != 100 {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	socket = adviceAgent(t, adviceReplies(0))
	code, out, stderr = outcome(t, "advise", "--admin-socket", socket)
	want = "node node-1: 1000 queries of pods in the last 1m40s, of which 0.0% are search waste\nnothing to advise: no workload wastes 5% of its queries\n"
	if d := cmp.Diff(want, out); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	if code, _, _ := outcome(t, "advise", "--admin-socket", socket, "--window", "1m"); code != 1 {
		t.Errorf("exit code %d without a reply", code)
	}
}

// TestAdviseAAAA: how many queries of pods without an IPv6 address `aaaa auto` saves, on one node and on several.
func TestAdviseAAAA(t *testing.T) {
	replies := adviceReplies(0)
	clients := replies["/clients?by=workload&window=1h"].(report.Clients)
	for i, upstream := range []uint64{60, 70, 80} {
		clients.Clients[i].Window.AAAA, clients.Clients[i].Window.AAAAUpstream = 250, upstream
		clients.Clients[i].IPv4Only = i != 1
	}
	clients.Clients[2].IPv4Only = false // the node
	const text = "pods without an IPv6 address asked %d times for one (25.0%% of the queries), and an upstream was asked %d times; aaaa auto in the Corefile saves that\n"
	socket := adviceAgent(t, replies)
	if code, out, stderr := outcome(t, "advise", "--admin-socket", socket); code != 0 || !strings.Contains(out, fmt.Sprintf(text, 250, 60)) {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	var reply report.Advice
	if _, out, _ := outcome(t, "advise", "-o", "json", "--admin-socket", socket); json.Unmarshal([]byte(out), &reply) != nil || reply.UnusableAAAA != 250 || reply.UnusableUpstream != 60 {
		t.Fatalf("as JSON:\n%s", out)
	}
	k := newFakeKubectl(t)
	for i := range 2 {
		reply.Node = fmt.Sprint("node-", i)
		k.agent(fmt.Sprint("p", i), reply.Node, reply)
	}
	if code, out, stderr := pluginOutcome(t, "advise --timeout 1m"); code != 0 || !strings.Contains(out, fmt.Sprintf(text, 500, 120)) {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
}

// budgetReplies are adviceReplies of an agent that uses the budget of an upstream, mostly for a Deployment.
func budgetReplies() map[string]any {
	replies := adviceReplies(0)
	clients := replies["/clients?by=workload&window=1h"].(report.Clients)
	clients.Clients[0].Window.Upstream, clients.Total.Upstream = 400, 500
	replies["/clients?by=workload&window=1h"] = clients
	replies["/upstreams"] = report.Upstreams{Forwards: []report.Forward{{Directives: []string{"cache", "forward"}, Upstreams: []report.Upstream{
		{To: "10.40.0.11:53", Budget: &report.Budget{LimitPerSecond: 900, UsedShare: 0.96, Waiting: 12}}, {To: "10.40.0.12:53"},
	}}}}
	return replies
}

// TestAdviseBudgets: which workload uses most of a budget, and what relieves it, on one node and on several.
func TestAdviseBudgets(t *testing.T) {
	const want = `
NODE UPSTREAM BUDGET USED WAITING MOST-QUERIES UPSTREAM/s SHARE RELIEF WHY
node-1 10.40.0.11:53 900/s 96.0% 12 shop/web 4.0 80.0% longer TTL at least 48% of its upstream queries are for names that it asked for before
serve_stale a query that would have to wait then gets the expired answer

longer TTL: success 9984 3600 60 in the body of cache; the last number is the least TTL in seconds
serve_stale: serve_stale in the body of cache
`
	socket := adviceAgent(t, budgetReplies())
	if code, out, stderr := outcome(t, "advise", "--admin-socket", socket); code != 0 || !strings.HasSuffix(squeeze(out), squeeze(want)) {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, cmp.Diff(want, out))
	}
	var reply report.Advice
	if _, out, _ := outcome(t, "advise", "-o", "json", "--admin-socket", socket); json.Unmarshal([]byte(out), &reply) != nil || len(reply.Budgets) != 1 {
		t.Fatalf("as JSON:\n%s", out)
	}
	k := newFakeKubectl(t)
	for i, used := range []float64{0.5, 0.7} {
		reply.Node, reply.Budgets[0].UsedShare = fmt.Sprint("node-", i), used
		k.agent(fmt.Sprint("p", i), reply.Node, reply)
	}
	code, out, stderr := pluginOutcome(t, "advise --timeout 1m")
	first, second := strings.Index(out, "\nnode-1 "), strings.Index(out, "\nnode-0 ")
	if code != 0 || first < 0 || second < first || strings.Count(out, "serve_stale:") != 1 {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
}

// TestAdviseTruncated: which clients get truncated replies and never ask over TCP, and what to change, on one node and on
// several.
func TestAdviseTruncated(t *testing.T) {
	const want = `
These clients got truncated replies and have never asked over TCP: they miss records.

CLIENT REPLIES CHANGE WHY
shop/web 40 client it offers fewer bytes than the reply has
bufsize it offers more bytes than the server block sends
(host) 3 bufsize it offers more bytes than the server block sends

client: let it ask over TCP after a reply with TC, or offer more bytes in its queries (EDNS; in HAProxy accepted_payload_size 8192)
bufsize: in the Corefile, the size that the client offers, such as bufsize 8192
`
	replies := adviceReplies(0)
	clients := replies["/clients?by=workload&window=1h"].(report.Clients)
	clients.Clients[0].Unfollowed, clients.Clients[0].UnfollowedCapped = 40, 4
	clients.Clients[2].Unfollowed, clients.Clients[2].UnfollowedCapped = 3, 3
	socket := adviceAgent(t, replies)
	if code, out, stderr := outcome(t, "advise", "--admin-socket", socket); code != 0 || !strings.HasSuffix(squeeze(out), squeeze(want)) {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, cmp.Diff(want, out))
	}
	var reply report.Advice
	if _, out, _ := outcome(t, "advise", "-o", "json", "--admin-socket", socket); json.Unmarshal([]byte(out), &reply) != nil || len(reply.Truncated) != 2 {
		t.Fatalf("as JSON:\n%s", out)
	}
	k := newFakeKubectl(t)
	for i := range 2 {
		reply.Node = fmt.Sprint("node-", i)
		k.agent(fmt.Sprint("p", i), reply.Node, reply)
	}
	if code, out, stderr := pluginOutcome(t, "advise --timeout 1m --rows 1"); code != 0 || !strings.Contains(squeeze(out), "\nshop/web 80 client ") || !strings.Contains(out, "\nand 1 more\n") {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
}

// TestPluginAdvise: the advice of two nodes is one.
func TestPluginAdvise(t *testing.T) {
	k := newFakeKubectl(t)
	_, text, _ := outcome(t, "advise", "-o", "json", "--admin-socket", adviceAgent(t, adviceReplies(300)))
	var reply report.Advice
	check.NoError(t, json.Unmarshal([]byte(text), &reply))
	for i := range 2 {
		k.agent(fmt.Sprint("p", i), fmt.Sprint("node-", i), reply)
	}
	k.Pod("old", "node-3", "Running", "echo 'nodens: unknown command \"advise\"' >&2; exit 2\n")
	code, out, stderr := pluginOutcome(t, "advise --timeout 1m -o wide")
	want := `2 nodes: 2000 queries of pods in the last 1m40s, of which 30.0% are search waste

WORKLOAD  QPS   WASTE  CHANGE                    SAVES          NAMES
shop/web  10.0  60.0%  ndots 2                   6.0/s (60.0%)  www.example.com 100.0%
                       ask for www.example.com.  6.0/s (60.0%)
(all)     20.0  30.0%  autopath                  6.0/s (30.0%)
` + howText + `not shown: node node-3, pod old: nodens: unknown command "advise"
`
	if d := cmp.Diff(squeeze(want), squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
}

// TestAdviseApply: --apply sets the advised ndots of the named workload, keeps its other options, and prints both; nothing is written
// with --dry-run, for workloads without such advice, and for kinds whose template can't change.
func TestAdviseApply(t *testing.T) {
	k := newFakeKubectl(t)
	_, text, _ := outcome(t, "advise", "-o", "json", "--admin-socket", adviceAgent(t, adviceReplies(300)))
	var reply report.Advice
	check.NoError(t, json.Unmarshal([]byte(text), &reply))
	k.agent("p", "node-1", reply)
	k.Write("object", `{"metadata": {"resourceVersion": "7"}, "spec": {"template": {"spec": {"dnsConfig": {"options": [{"name": "ndots", "value": "5"}, {"name": "edns0"}]}}}}}`)
	k.Write("patched", "deployment.apps/web\n")
	const change = `Deployment shop/web: in the pod template, dnsConfig.options from ["ndots:5" "edns0"] to ["edns0" "ndots:2"]` + "\n"
	for _, c := range []struct{ line, mode, out string }{
		{"advise --apply shop/web --timeout 1m", "none", change + "changed\n"},
		{"advise --apply shop/web --dry-run --timeout 1m", "server", change + "not changed: dry run, which the API server accepts\n"},
	} {
		code, out, stderr := pluginOutcome(t, c.line)
		if code != 0 || out != c.out {
			t.Errorf("%s: %d %s\n%s", c.line, code, stderr, cmp.Diff(c.out, out))
		}
		want := "--namespace shop patch deployments.apps/web --type=merge --field-manager=kubectl-nodens --dry-run=" + c.mode + " --output=name " +
			`--patch={"metadata":{"resourceVersion":"7"},"spec":{"template":{"spec":{"dnsConfig":{"options":[{"name":"edns0"},{"name":"ndots","value":"2"}]}}}}}`
		if asked := k.Asked(); asked[len(asked)-1] != want {
			t.Errorf("%s: kubectl got\n%s\nwant\n%s", c.line, asked[len(asked)-1], want)
		}
	}
	patches := strings.Count(strings.Join(k.Asked(), "\n"), " patch ")
	for line, want := range map[string]string{
		"advise --apply shop/none --timeout 1m": `no ndots is advised for "shop/none"`,
		"advise --dry-run --timeout 1m":         "--apply",
	} {
		if code, out, stderr := pluginOutcome(t, line); code == 0 || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %q %q, want an error with %q", line, code, out, stderr, want)
		}
	}
	reply.Workloads[0].WorkloadKind = "Job"
	k.agent("p", "node-1", reply)
	if code, _, stderr := pluginOutcome(t, "advise --apply shop/web --timeout 1m"); code != 1 || !strings.Contains(stderr, "Job shop/web can't be changed") {
		t.Errorf("a Job: %d %s", code, stderr)
	}
	if n := strings.Count(strings.Join(k.Asked(), "\n"), " patch "); n != patches {
		t.Errorf("%d patches more than without these", n-patches)
	}
}

// TestAdviseBypass: the servers that pods ask without the agent, with the queries of a workload's pods added up.
func TestAdviseBypass(t *testing.T) {
	replies := adviceReplies(0)
	client := func(pod string) *report.NameClient {
		return &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: pod}
	}
	replies["/names?topic=bypass&window=1h"] = report.Names{Names: []report.Name{
		{Name: "192.0.2.53:53", Cause: "tcp", Client: client("web-1"), Queries: 30}, {Name: "192.0.2.53:53", Cause: "udp", Client: client("web-1"), Queries: 20},
		{Name: "192.0.2.53:53", Cause: "udp", Client: client("web-2"), Queries: 21}, {Name: "192.0.2.1:853", Cause: "tls", Client: &report.NameClient{Kind: "unknown", Address: "10.0.0.9"}, Queries: 1},
	}}
	socket := adviceAgent(t, replies)
	code, out, stderr := outcome(t, "advise", "--admin-socket", socket)
	hasTexts(t, squeeze(out), "These clients ask other DNS servers directly", "\nCLIENT SERVER PROTOCOL QUERIES\nshop/web 192.0.2.53:53 udp 41\nshop/web 192.0.2.53:53 tcp 30\n(unknown) 192.0.2.1:853 tls 1\n", "dnsConfig")
	if code != 0 {
		t.Errorf("%d %s", code, stderr)
	}
	var a report.Advice
	_, out, _ = outcome(t, "advise", "-o", "json", "--admin-socket", socket)
	if err := json.Unmarshal([]byte(out), &a); err != nil || len(a.Bypasses) != 3 || a.Bypasses[0].Queries != 41 {
		t.Errorf("%v\n%s", err, out)
	}
	_, out, _ = outcome(t, "advise", "--admin-socket", adviceAgent(t, adviceReplies(0)))
	lacksTexts(t, out, "other DNS servers")
}
