package app

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// explainer is an agent whose admin socket is asked for explanations.
type explainer struct {
	*agenttest.Agent
	t       *testing.T
	socket  string
	dns, up uint16
}

// startExplainer starts an agent with the objects of loopbackPod, a table of hosts, and an upstream that is another
// agent.
func startExplainer(t *testing.T, changes ...func(*options.Agent)) *explainer {
	t.Helper()
	p := peer.Ports(t, 2)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 www.example.org\n }\n}\n", p[1]))
	dir := t.TempDir()
	file := filepath.Join(dir, "objects.yaml")
	agenttest.WriteFile(t, file, loopbackPod+podWithNdots)
	x := &explainer{t: t, socket: filepath.Join(dir, "a.sock"), dns: p[0], up: p[1]}
	changes = append([]func(*options.Agent){func(o *options.Agent) { o.AdminSocket, o.NodeName = x.socket, "n1" }}, changes...)
	x.Agent = startAgent(t, fmt.Sprintf(`. {
 bind 127.0.0.1
 kubernetes cluster.local in-addr.arpa {
  manifests %s
 }
 hosts {
  192.0.2.9 by.hand
  fallthrough
 }
 cache 300
 forward . 127.0.0.1:%d {
  policy sequential
 }
}
`, file, p[1]), append(changes, func(o *options.Agent) { o.DNSPort = p[0] })...)
	return x
}

// podWithNdots is a pod whose resolver asks for names with two dots as they are first.
const podWithNdots = `---
apiVersion: v1
kind: Pod
metadata: {name: sharp, namespace: shop, uid: u2}
spec: {nodeName: n1, dnsConfig: {options: [{name: ndots, value: "2"}]}}
status: {phase: Running, podIPs: [{ip: 127.0.0.7}]}
`

// TestExplainNdots: a pod's own ndots applies unless the request has another one. Clients have the highest of their pods.
func TestExplainNdots(t *testing.T) {
	x := startExplainer(t)
	for _, c := range []struct {
		parameters string
		ndots      int
		first      string
	}{
		{"name=www.example.org from=web-7c5ddbdf54-x2x4z", 5, "www.example.org.shop.svc.cluster.local."},
		{"name=www.example.org from=sharp", 2, "www.example.org."},
		{"name=www.example.org from=127.0.0.7", 2, "www.example.org."},
		{"name=www.example.org from=sharp ndots=4", 4, "www.example.org.shop.svc.cluster.local."},
		{"name=www.example.org", 5, "www.example.org."},
	} {
		if e := x.explain(strings.Fields(c.parameters)...); e.Ndots != c.ndots || e.Questions[0].Name != c.first {
			t.Errorf("%s: ndots %d, and first %s", c.parameters, e.Ndots, e.Questions[0].Name)
		}
	}
	agenttest.Ask(t, x.dns, "by.hand.")
	for by, want := range map[string]bool{"pod": true, "workload": true, "namespace": false} {
		c := shown[report.Clients](t, x.socket, "/clients?window=1h&by="+by)
		if len(c.Clients) != 1 || (c.Clients[0].Ndots != nil) != want || want && *c.Clients[0].Ndots != 5 {
			t.Errorf("clients by %s: %+v", by, c.Clients)
		}
	}
}

// explain asks for an explanation with the parameters, as KEY=VALUE.
func (x *explainer) explain(parameters ...string) (e report.Explanation) {
	x.t.Helper()
	code, text := x.get(parameters...)
	if err := json.Unmarshal([]byte(text), &e); err != nil || code != http.StatusOK || e.SchemaVersion != report.SchemaVersion || e.Node != "n1" {
		x.t.Fatalf("%v: %d %v\n%s", parameters, code, err, text)
	}
	return e
}

func (x *explainer) get(parameters ...string) (int, string) {
	values := url.Values{}
	for _, p := range parameters {
		key, value, _ := strings.Cut(p, "=")
		values.Set(key, value)
	}
	return over(x.t, x.socket, "GET", "/explain?"+values.Encode())
}

// TestExplain: what a query of the node gets, before and after it is asked.
func TestExplain(t *testing.T) {
	x := startExplainer(t)
	for name, want := range map[string]report.ExplainedQuestion{
		"by.hand":                    {Source: "hosts", ExplainedReply: report.ExplainedReply{Rcode: "NOERROR", Answers: []string{"by.hand. 300 IN A 192.0.2.9"}}},
		"web.shop.svc.cluster.local": {Source: "kubernetes", ExplainedReply: report.ExplainedReply{Rcode: "NOERROR", Answers: []string{"web.shop.svc.cluster.local. 5 IN A 10.96.0.1"}}},
		"no.shop.svc.cluster.local":  {Source: "kubernetes", ExplainedReply: report.ExplainedReply{Rcode: "NXDOMAIN", Answers: []string{}}},
		"www.example.org":            {Source: "forward", Waits: "upstream", ExplainedReply: report.ExplainedReply{Answers: []string{}}},
	} {
		e := x.explain("name=" + name)
		if len(e.Questions) != 1 {
			t.Fatalf("%s: %d questions", name, len(e.Questions))
		}
		got := e.Questions[0]
		short := report.ExplainedQuestion{Source: got.Source, Waits: got.Waits, ExplainedReply: report.ExplainedReply{Rcode: got.Rcode, Answers: got.Answers}}
		if diff := cmp.Diff(want, short); diff != "" || got.Zone == nil || got.Zone.Line != 1 {
			t.Errorf("%s: %+v\n%s", name, got.Zone, diff)
		}
	}
	to := fmt.Sprintf("127.0.0.1:%d", x.up)
	if f := x.explain("name=www.example.org").Questions[0].Forward; f == nil || f.From != "." || f.Policy != "sequential" || len(f.Upstreams) != 1 || f.Upstreams[0].To != to {
		t.Errorf("forward: %+v", f)
	}
	agenttest.Expect(t, x.dns, "www.example.org.", "192.0.2.1")
	q := x.explain("name=www.example.org").Questions[0]
	if q.Source != "cache" || q.Waits != "" || q.Forward != nil || len(q.Cached) != 1 || q.TTLSeconds == nil {
		t.Fatalf("from the cache: %+v", q)
	}
	if c := q.Cached[0]; c.Type != "A" || c.Kind != "success" || c.Rcode != "NOERROR" || c.TTLSeconds <= 0 || c.AgeSeconds == nil || c.Class != "IN" {
		t.Errorf("cached: %+v", c)
	}
	if q := x.explain("name=www.example.org", "dnssec=true").Questions[0]; q.Source != "forward" || len(q.Cached) != 1 {
		t.Errorf("with DO: %+v", q)
	}
}

// TestExplainFrom: the queries of a pod's resolver, in its order.
func TestExplainFrom(t *testing.T) {
	x := startExplainer(t)
	names := func(e report.Explanation) (list []string) {
		for _, q := range e.Questions {
			list = append(list, q.Name)
		}
		return list
	}
	for from, name := range map[string]string{"shop/web-7c5ddbdf54-x2x4z": "web", "web-7c5ddbdf54-x2x4z": "web.shop", "127.0.0.1": "web.shop.svc"} {
		e := x.explain("name="+name, "from="+from)
		if e.Client.Address != "127.0.0.1" || e.Client.Namespace != "shop" || e.Client.Workload != "web" || e.Ndots != 5 || len(e.Search) < 3 || e.Search[0] != "shop.svc.cluster.local." {
			t.Errorf("%s: the client is %+v, the search path %v", from, e.Client, e.Search)
		}
		last := e.Questions[len(e.Questions)-1]
		if last.Name != "web.shop.svc.cluster.local." || last.Rcode != "NOERROR" || len(e.Questions) != strings.Count(name, ".")+1 || last.Conditional {
			t.Errorf("%s from %s: %v", name, from, names(e))
		}
	}
	e := x.explain("name=www.example.org", "from=web-7c5ddbdf54-x2x4z")
	if got := names(e); len(got) < 4 || got[0] != "www.example.org.shop.svc.cluster.local." || got[len(got)-1] != "www.example.org." {
		t.Errorf("a name outside of the cluster: %v", got)
	}
	if got := names(x.explain("name=www.example.org", "from=shop/web-7c5ddbdf54-x2x4z", "ndots=2")); len(got) < 4 || got[0] != "www.example.org." {
		t.Errorf("with ndots 2: %v", got)
	}
	if got := names(x.explain("name=www.example.org.", "from=shop/web-7c5ddbdf54-x2x4z")); len(got) != 1 {
		t.Errorf("with a dot at the end: %v", got)
	}
	if e := x.explain("name=web", "from=192.0.2.7"); e.Client.Pod != "" || len(e.Search) != 0 || len(e.Questions) != 1 {
		t.Errorf("an unknown address: %+v", e.Client)
	}
}

// TestExplainRefusals: what /explain does not take.
func TestExplainRefusals(t *testing.T) {
	x := startExplainer(t)
	off := startExplainer(t, func(o *options.Agent) { o.ClientMetrics = options.ClientMetricsOff })
	for _, c := range []struct {
		x          *explainer
		parameters string
		want       string
	}{
		{x, "type=A", "give a domain name"},
		{x, "name=a..b", "give a domain name"},
		{x, "name=a type=SOMETHING", "give the name of a record type"},
		{x, "name=a type=TYPE70000", "give the name of a record type"},
		{x, "name=a protocol=sctp", "give udp or tcp"},
		{x, "name=a ndots=16", "give a number from 0 to 15"},
		{x, "name=a server=192.0.2.1", fmt.Sprintf("the agent listens at dns://127.0.0.1:%d", x.dns)},
		{x, "name=a from=shop/none", "NAMESPACE/NAME of a pod of this node"},
		{off, "name=a from=shop/web", "without --client-metrics=off"},
	} {
		if code, text := c.x.get(strings.Fields(c.parameters)...); code != http.StatusBadRequest || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %q, want %q", c.parameters, code, text, c.want)
		}
	}
	if e := x.explain("name=by.hand", "type=type65", fmt.Sprintf("server=127.0.0.1:%d", x.dns), "protocol=tcp"); e.Questions[0].Type != "HTTPS" || e.Listener.Protocol != "tcp" {
		t.Errorf("TYPE65 over TCP: %+v %+v", e.Listener, e.Questions[0])
	}
}

// TestExplainAsk: a query that is really asked, and what is cached then.
func TestExplainAsk(t *testing.T) {
	x := startExplainer(t)
	code, text := over(t, x.socket, "POST", "/explain?name=www.example.org&from=web-7c5ddbdf54-x2x4z")
	var e report.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil || code != http.StatusOK {
		t.Fatalf("POST /explain: %d %v\n%s", code, err, text)
	}
	for i, q := range e.Questions {
		if q.Asked == nil || q.Conditional || (q.Asked.Rcode == "NOERROR") != (i == len(e.Questions)-1) {
			t.Fatalf("%s: %+v", q.Name, q.Asked)
		}
	}
	last := e.Questions[len(e.Questions)-1]
	if a := last.Asked; last.Waits != "upstream" || a.Source != "forward" || a.Seconds <= 0 || !cmp.Equal(a.Answers, []string{"www.example.org. 300 IN A 192.0.2.1"}) {
		t.Errorf("the last query: %+v %+v", last, a)
	}
	cached := shown[report.CacheEntries](t, x.socket, "/cache/entries?name=www.example.org&type=a")
	if len(cached.Caches) != 1 || cached.Caches[0].Line != 1 || len(cached.Caches[0].Entries) != 1 || cached.Caches[0].Entries[0].Answers != 1 {
		t.Errorf("cached: %+v", cached.Caches)
	}
	cached = shown[report.CacheEntries](t, x.socket, "/cache/entries?name=www.example.org&type=mx")
	if len(cached.Caches) != 1 || len(cached.Caches[0].Entries) != 0 || cached.Name != "www.example.org." {
		t.Errorf("cached of another type: %+v", cached.Caches)
	}
	stats := shown[report.CacheStats](t, x.socket, "/cache")
	if len(stats.Caches) != 1 || stats.Bytes <= 0 || stats.BudgetBytes <= stats.Bytes {
		t.Fatalf("the caches: %+v", stats)
	}
	c := stats.Caches[0]
	if c.Success.Entries != 1 || c.Success.Capacity == 0 || c.Misses == 0 || c.Bytes != stats.Bytes || !cmp.Equal(c.Zones, []string{"."}) {
		t.Errorf("the cache: %+v", c)
	}
	for path, want := range map[string]string{"/cache/entries?type=A": "give a domain name", "/cache/entries?name=a&type=NOTYPE": "give the name of a record type"} {
		if code, text := over(t, x.socket, "GET", path); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}

// TestExplainPacket: a query message in place of its parts.
func TestExplainPacket(t *testing.T) {
	x := startExplainer(t)
	packet := wire.AppendQuery(nil, 1, []byte("\x02by\x04hand\x00"), wire.TypeA, nil, wire.MinUDP)
	e := x.explain("packet=" + base64.RawURLEncoding.EncodeToString(packet))
	if len(e.Questions) != 1 || e.Questions[0].Name != "by.hand." || e.Questions[0].Source != "hosts" {
		t.Errorf("a packet: %+v", e.Questions)
	}
	if e := x.explain("packet=" + base64.RawURLEncoding.EncodeToString(packet[:20])); e.Questions[0].Error == "" || e.Questions[0].Name != "" {
		t.Errorf("a broken packet: %+v", e.Questions)
	}
	if code, text := x.get("packet=%%"); code != http.StatusBadRequest || !strings.Contains(text, "base64url") {
		t.Errorf("no base64: %d %s", code, text)
	}
}
