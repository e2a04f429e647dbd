//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/fakekubectl"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// fakeKubectl is a fake kubectl with agents.
type fakeKubectl struct {
	*fakekubectl.Kubectl
	t *testing.T
}

func newFakeKubectl(t *testing.T) *fakeKubectl { return &fakeKubectl{fakekubectl.New(t), t} }

// agent adds a pod whose agent answers with reply.
func (k *fakeKubectl) agent(pod, node string, reply any) {
	k.t.Helper()
	text, err := json.Marshal(reply)
	if err != nil {
		k.t.Fatal(err)
	}
	k.Write(pod+".json", string(text))
	k.Pod(pod, node, "Running", fmt.Sprintf("cat %s/%s.json\n", k.Dir, pod))
}

// pluginOutcome runs a command of the plugin to its end in this process. Agents have a minute to answer.
func pluginOutcome(t *testing.T, line string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errors bytes.Buffer
	code = execute(t.Context(), newPluginCommand(), strings.Fields(line), &out, &errors)
	return code, out.String(), errors.String()
}

// replyOf is topReply on another node, with so many times the queries.
func replyOf(node, pod string, times uint64) report.Clients {
	reply := topReply
	reply.Node = node
	reply.Total.Queries *= times
	reply.Clients = nil
	for _, c := range topReply.Clients {
		if c.Kind == "pod" {
			c.Pod = pod
		}
		c.QueriesPerSecond *= float64(times)
		c.Window.Queries *= times
		c.Window.Upstream *= times
		reply.Clients = append(reply.Clients, c)
	}
	return reply
}

// TestPluginTop: the rows of two nodes, with agents that do not answer. A node with two agents counts once.
func TestPluginTop(t *testing.T) {
	k := newFakeKubectl(t)
	k.agent("a", "node-1", replyOf("node-1", "web-1", 1))
	k.agent("b", "node-2", replyOf("node-2", "web-2", 3))
	k.agent("b-next", "node-2", replyOf("node-2", "web-2", 3))
	k.Pod("c", "node-3", "Running", "echo 'Defaulted container' >&2; echo 'nodens: no agent answers' >&2; echo 'command terminated with exit code 1' >&2; exit 1\n")
	k.agent("d", "node-4", report.Header{SchemaVersion: 2})
	k.Pod("e", "node-5", "Running", "echo '<html>'\n")
	k.Pod("f", "node-6", "Running", "yes\n")
	k.Pod("g", "<none>", "Pending", "exit 9\n")
	k.Pod("b-last", "node-2", "Pending", "exit 9\n")
	k.Pod("h", "node-7", "Running", "exit 3\n")
	const unanswered = `not shown: pod g: the pod is Pending
not shown: node node-3, pod c: nodens: no agent answers
not shown: node node-4, pod d: the reply has the schema version 2, and this program knows 1; use the program of the agent's version
not shown: node node-5, pod e: the reply is not valid: invalid character '<' looking for beginning of value
not shown: node node-6, pod f: more than 4 MiB of output
not shown: node node-7, pod h: exit status 3
`
	const byPod = `2 nodes: 80.0 queries/s

NODE    POD         QPS   SHARE  HIT    KERNEL  NXDOMAIN  WASTE  SERVFAIL  UPSTREAM/s  P50      P99         SHED  TOP-NAME
node-2  shop/web-2  48.0  60.0%  29.2%  4.2%    16.7%     8.3%   0.0%      6.0         ≤1.024ms  ≤262.144ms  0  db.shop.svc.cluster.local. 40.0%
node-1  shop/web-1  16.0  20.0%  87.5%  12.5%   50.0%     25.0%  0.0%      2.0         ≤1.024ms  ≤262.144ms  0  db.shop.svc.cluster.local. 40.0%
node-2  10.0.0.9    12.0  15.0%  25.0%  0.0%    0.0%      0.0%   8.3%      0.0         -         -           50  -
node-1  10.0.0.9    4.0   5.0%   75.0%  0.0%    0.0%      0.0%   25.0%     0.0         -         -           50  -
and 6 more
` + unanswered
	code, out, stderr := pluginOutcome(t, "top --rows 4 --timeout 1m")
	if d := cmp.Diff(squeeze(byPod), squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	if want := "--namespace kube-system exec a -- nodens top --by pod --window 1m -o json"; !strings.Contains(strings.Join(k.Asked(), "\n")+"\n", want+"\n") {
		t.Errorf("no %q in %q", want, k.Asked())
	}
	const byNamespace = `2 nodes: 80.0 queries/s

NAMESPACE  NODES  QPS   SHARE  HIT    KERNEL  NXDOMAIN  WASTE  SERVFAIL  UPSTREAM/s  P50       P99         SHED  TOP-NAME
shop       2      64.0  80.0%  43.8%  6.2%    25.0%     12.5%  0.0%      8.0         ≤1.024ms  ≤262.144ms  0     db.shop.svc.cluster.local. 40.0%
(unknown)  2      16.0  20.0%  37.5%  0.0%    0.0%      0.0%   12.5%     0.0         -         -           100   -
(host)     2      0.0   0.0%   -      -       -         -      -         0.0         -         -           0     -
and 4 more
` + unanswered
	// The agents' replies are by pod here, but one row for each namespace is what is tested.
	for _, pod := range []string{"a", "b", "b-next"} {
		reply := replyOf("node", "", map[string]uint64{"a": 1, "b": 3, "b-next": 3}[pod])
		for i := range reply.Clients {
			reply.Clients[i].Workload, reply.Clients[i].WorkloadKind = "", ""
		}
		text, err := json.Marshal(reply)
		check.NoError(t, err)
		k.Write(pod+".json", string(text))
	}
	code, out, stderr = pluginOutcome(t, "top --by namespace --timeout 1m")
	if d := cmp.Diff(squeeze(byNamespace), squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	code, out, stderr = pluginOutcome(t, "top --by namespace --timeout 1m -o yaml")
	var c report.ClusterClients
	if err := yaml.UnmarshalStrict([]byte(out), &c); err != nil || code != 0 || c.SchemaVersion != 1 || c.Nodes != 2 || len(c.Unanswered) != 6 || c.Total.Queries != 4000 || c.Clients[0].Nodes != 2 {
		t.Errorf("%d %s %v\n%s", code, stderr, err, out)
	}
}

// TestPluginNames: names are sums over the nodes.
func TestPluginNames(t *testing.T) {
	k := newFakeKubectl(t)
	for i, n := range []uint64{1, 2} {
		reply := report.Names{Header: report.Header{SchemaVersion: 1}, Topic: "failing", Window: "1m", WindowSeconds: 50, Queries: 100 * n, Floor: n, More: 1}
		reply.Names = []report.Name{
			{Name: "a.test.", Cause: "upstream", Queries: 50 * n, Error: n, Deviation: 2 + n, QueriesPerSecond: float64(n)},
			{Name: fmt.Sprintf("%d.test.", i), Cause: "timeout", Queries: 10, QueriesPerSecond: 0.2},
		}
		k.agent(fmt.Sprint("p", i), fmt.Sprint("node-", i), reply)
	}
	const want = `2 nodes: 300 queries with SERVFAIL; counts may be too low by 3, and names without a row have at most as many

CAUSE     QPS  SHARE  QUERIES  ERROR  NAME
upstream  3.0  50.0%  150      ≤3 ±5  a.test.
timeout   0.2  3.3%   10       ≤0     0.test.
timeout   0.2  3.3%   10       ≤0     1.test.
and 2 more
`
	code, out, stderr := pluginOutcome(t, "top --by name --topic failing --timeout 1m")
	if d := cmp.Diff(want, out); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
}

// TestPluginBypass: the servers that pods ask without the agent, of all nodes.
func TestPluginBypass(t *testing.T) {
	k := newFakeKubectl(t)
	for i, n := range []uint64{1, 2} {
		pod := &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: fmt.Sprint("web-", i), Address: "10.0.0.1"}
		k.agent(fmt.Sprint("p", i), fmt.Sprint("node-", i), report.Names{
			Header: report.Header{SchemaVersion: 1}, Topic: "bypass", Window: "1m", WindowSeconds: 50, Queries: 100 * n,
			Names: []report.Name{{Name: "192.0.2.53:53", Cause: "udp", Client: pod, Queries: 100 * n, QueriesPerSecond: float64(n)}},
		})
	}
	const want = `2 nodes: 300 queries of pods to other DNS servers

POD PROTOCOL QPS SHARE QUERIES ERROR SERVER
shop/web-1 udp 2.0 66.7% 200 ≤0 192.0.2.53:53
shop/web-0 udp 1.0 33.3% 100 ≤0 192.0.2.53:53
`
	code, out, stderr := pluginOutcome(t, "top --by bypass --timeout 1m")
	if d := cmp.Diff(want, squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	if want := "--namespace kube-system exec p0 -- nodens top --by bypass --window 1m -o json"; !strings.Contains(strings.Join(k.Asked(), "\n")+"\n", want+"\n") {
		t.Errorf("no %q in %q", want, k.Asked())
	}
	for i, n := range []uint64{1, 2} {
		id := report.WorkloadID{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web"}
		k.agent(fmt.Sprint("p", i), fmt.Sprint("node-", i), report.Advice{Header: report.Header{SchemaVersion: 1}, AdviceCounts: report.AdviceCounts{
			Bypasses: []report.BypassClient{{WorkloadID: id, Server: "192.0.2.53:53", Protocol: "udp", Queries: n}, {WorkloadID: id, Server: fmt.Sprintf("192.0.2.%d:853", i), Protocol: "tls", Queries: 1}},
		}})
	}
	code, out, stderr = pluginOutcome(t, "advise --timeout 1m")
	hasTexts(t, squeeze(out), "\nshop/web 192.0.2.53:53 udp 3\nshop/web 192.0.2.0:853 tls 1\nshop/web 192.0.2.1:853 tls 1\n")
	if code != 0 {
		t.Errorf("%d %s", code, stderr)
	}
}

// TestPluginUpstreams: a server has one row for all nodes, which says on how many it is down.
func TestPluginUpstreams(t *testing.T) {
	k := newFakeKubectl(t)
	for i, n := range []float64{1, 3} {
		reply := report.Upstreams{Header: report.Header{SchemaVersion: 1}, More: i, Forwards: []report.Forward{
			{Upstreams: []report.Upstream{
				{To: "192.0.2.1:53", Budget: &report.Budget{LimitPerSecond: 900, UsedShare: 0.2 * n, Waiting: int(n), Auto: i == 1}, RTTSeconds: 0.001 * n, Recent: report.Exchanges{Seconds: 60, PerSecond: 10 * n, ServfailShare: 0.1 * n, UnansweredShare: 0.2 * n, P50Seconds: 0.001, P99Seconds: 0.01 * n}},
				{To: fmt.Sprintf("192.0.2.%d:53", 7+i), Suspect: true},
			}},
			{Upstreams: []report.Upstream{{To: "192.0.2.1:53", Down: i == 0, Suspect: true, Recent: report.Exchanges{PerSecond: 10 * n}}}},
		}}
		k.agent(fmt.Sprint("p", i), fmt.Sprint("node-", i), reply)
	}
	k.Pod("silent", "node-9", "Running", "exit 1\n")
	const want = `2 nodes: 40.0 exchanges/s with 3 upstreams

UPSTREAM NODES QPS SHARE SERVFAIL UNANSWERED P50 P99 RTT STATE BUDGET USED WAITING
192.0.2.1:53 2 40.0 100.0% 25.0% 60.0% ≤1ms ≤30ms 3.0ms down on 1 node, suspect on 2 nodes auto 900/s 60.0% 4
192.0.2.7:53 1 0.0 0.0% 0.0% 0.0% - - - suspect on 1 node - - -
and 2 more
not shown: node node-9, pod silent: exit status 1
`
	code, out, stderr := pluginOutcome(t, "top --by upstream --rows 2 --sort servfail --timeout 1m")
	if d := cmp.Diff(want, squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	if want := "exec p0 -- nodens top --by upstream -o json"; !strings.Contains(strings.Join(k.Asked(), "\n")+"\n", want+"\n") {
		t.Errorf("no %q in %q", want, k.Asked())
	}
	code, out, _ = pluginOutcome(t, "top --by upstream --timeout 1m -o json")
	var u report.ClusterUpstreams
	if err := json.Unmarshal([]byte(out), &u); err != nil || code != 0 || u.Nodes != 2 || len(u.Upstreams) != 3 || u.Upstreams[0].Down != 1 || u.More != 1 {
		t.Errorf("%d %v\n%s", code, err, out)
	}
}

// TestPluginStatus: one row for each agent. The exit code is 1 if one is not healthy or does not answer.
func TestPluginStatus(t *testing.T) {
	k := newFakeKubectl(t)
	now := time.Now()
	healthy := report.Status{
		Header: report.Header{SchemaVersion: 1, Node: "node-1", Instance: "0a"}, Version: "0.2.0", ServingSince: now, Ready: true, Healthy: true,
		Rates: report.Rates{QueriesPerSecond: 12.34, P50Seconds: 0.001, P99Seconds: 0.002, HitRatio: 0.5}, Upstreams: report.Counts{Total: 2},
	}
	k.agent("a", "node-1", healthy)
	before := healthy
	before.ServingSince, before.Version, before.Instance = now.Add(-time.Hour), "0.1.0", "09"
	k.agent("a-before", "node-1", before)
	code, out, stderr := pluginOutcome(t, "status --timeout 1m")
	const head, row = "NODE STATE SERVING VERSION QPS HIT KERNEL SERVFAIL P50 P99 UPSTREAMS PROBLEM\n", "node-1 healthy 0.2.0 12.3 50.0% 0.0% 0.0% ≤1ms ≤2ms 2 -\n"
	if d := cmp.Diff(head+row, squeeze(out)); code != 0 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	sick := healthy
	sick.Node, sick.Healthy, sick.Problems, sick.Upstreams.Down = "", false, []report.Problem{{Text: "all upstreams are down", Remedy: "check them"}}, 2
	k.agent("b", "node-2", sick)
	k.Write("pod-b", fmt.Sprintf("cat %s/b.json; echo 'nodens: all upstreams are down' >&2; exit 1\n", k.Dir))
	k.Pod("c", "node-3", "Running", "exit 1\n")
	code, out, stderr = pluginOutcome(t, "status --timeout 1m")
	want := head + row + "node-2 ready, with problems 0.2.0 12.3 50.0% 0.0% 0.0% ≤1ms ≤2ms 2, 2 down all upstreams are down\nnot shown: node node-3, pod c: exit status 1\n"
	if d := cmp.Diff(want, squeeze(out)); code != 1 || d != "" {
		t.Errorf("%d %s (-want +got)\n%s", code, stderr, d)
	}
	if want := "kubectl nodens: 1 agent has a problem; 1 agent has not answered\n"; stderr != want {
		t.Errorf("%q, want %q", stderr, want)
	}
	code, out, _ = pluginOutcome(t, "status --timeout 1m -o json")
	var s report.ClusterStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 1 || s.Healthy || s.Nodes != 2 || len(s.Agents) != 2 || s.Agents[1].Node != "node-2" {
		t.Errorf("%d %v\n%s", code, err, out)
	}
}

// TestPluginExplain: the agent on the node of the pod explains.
func TestPluginExplain(t *testing.T) {
	k := newFakeKubectl(t)
	k.Pod("a", "node-1", "Running", "exit 1\n")
	reply := report.Explanation{Header: report.Header{SchemaVersion: 1, Node: "node-2"}}
	reply.Listener.Address, reply.Listener.Transport, reply.Listener.Protocol = "169.254.20.10:53", "dns", "udp"
	reply.Client.Address, reply.Client.Namespace, reply.Client.Pod = "10.0.0.1", "shop", "web-1"
	k.agent("b", "node-2", reply)
	k.Write("node", "node-2\n")
	code, out, stderr := pluginOutcome(t, "explain www.example.com AAAA --from shop/web-1 --ndots 2 --tcp --timeout 1m")
	if want := "listener 169.254.20.10:53, dns over udp\nclient 10.0.0.1, pod shop/web-1\n"; code != 0 || squeeze(out) != want {
		t.Errorf("%d %s\n%s, want\n%s", code, stderr, out, want)
	}
	want := []string{
		"--namespace shop get pod web-1 --no-headers -o custom-columns=NODE:.spec.nodeName",
		"--namespace kube-system get pods --selector k8s-app=node-local-dns --no-headers -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase",
		"--namespace kube-system exec b -- nodens explain --from shop/web-1 --ndots 2 --tcp=true --dnssec=false --ask=false -o json -- www.example.com AAAA",
	}
	check.Equal(t, want, k.Asked(), "kubectl gets")
	for line, want := range map[string]string{
		"explain a":                 "no pod is given; give --from NAMESPACE/NAME, or --node",
		"explain a --from web-1":    "no pod is given; give --from NAMESPACE/NAME, or --node",
		"explain a --node node-3":   "no pod of an agent is on the node node-3",
		"explain a --node node-1":   "no agent has answered; node node-1, pod a: exit status 1",
		"explain a --from 10.0.0.1": "no pod is given; give --from NAMESPACE/NAME, or --node",
		"explain":                   "explain takes a name",
	} {
		if code, out, stderr := pluginOutcome(t, line); code == 0 || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %q %q, want %q", line, code, out, stderr, want)
		}
	}
	k.Write("node", "<none>\n")
	if code, _, stderr := pluginOutcome(t, "explain a --from shop/web-1"); code != 1 || !strings.Contains(stderr, "the pod shop/web-1 is on no node yet") {
		t.Errorf("%d %s", code, stderr)
	}
}

// TestPluginErrors: what the commands say if nothing can be shown.
func TestPluginErrors(t *testing.T) {
	k := newFakeKubectl(t)
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"top", 1, "no pod in the namespace kube-system has the labels k8s-app=node-local-dns; give --namespace and --selector"},
		{"top --topic slow", 2, "--topic does not go with --by pod"},
		{"topp", 2, `unknown command "topp"; did you mean "top"?`},
		{"status x", 2, "kubectl nodens status --help lists the flags"},
		{"check", 2, "unknown command"},
	} {
		if code, out, stderr := pluginOutcome(t, c.line); code != c.code || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %q %q, want %d %q", c.line, code, out, stderr, c.code, c.want)
		}
	}
	k.Pod("slow", "node-1", "Running", "exec sleep 600\n")
	code, out, stderr := pluginOutcome(t, "top --timeout 50ms --context blue --kubeconfig /k -n dns -l app=agent")
	if want := "not shown: node node-1, pod slow: no answer in 50ms\n"; code != 1 || out != want || !strings.Contains(stderr, "no agent has answered; node node-1, pod slow: no answer in 50ms") {
		t.Errorf("%d %q %q, want %q", code, out, stderr, want)
	}
	asked := k.Asked()
	want := "--kubeconfig /k --context blue --namespace dns get pods --selector app=agent --no-headers -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase"
	if asked[len(asked)-1] != want && asked[len(asked)-2] != want {
		t.Errorf("kubectl got %q", asked)
	}
	k.Write("kubectl", "#!/bin/sh\necho 'E0101 noise' >&2\necho 'error: You must be logged in to the server' >&2\nexit 1\n")
	if code, _, stderr := pluginOutcome(t, "status"); code != 1 || stderr != "kubectl nodens: listing the agents' pods: error: You must be logged in to the server\n" {
		t.Errorf("%d %q", code, stderr)
	}
	t.Setenv("PATH", t.TempDir())
	if code, _, stderr := pluginOutcome(t, "status"); code != 1 || !strings.Contains(stderr, "install kubectl, or add its directory to PATH") {
		t.Errorf("%d %q", code, stderr)
	}
	if code, out, _ := pluginOutcome(t, ""); code != 0 || !strings.Contains(out, "  kubectl nodens COMMAND [flags]\n") {
		t.Errorf("%d %s", code, out)
	}
}

// TestPluginName: the name of the program makes it a plugin.
func TestPluginName(t *testing.T) {
	for path, want := range map[string]bool{
		"kubectl-nodens": true, "/usr/bin/kubectl-nodens": true, `C:\bin\kubectl-nodens.exe`: true, "./kubectl-nodens.EXE": true,
		"nodens": false, "": false, "/kubectl-nodens/nodens": false, "kubectl-nodens-top": false, "nodens.exe": false,
	} {
		if isPlugin(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
