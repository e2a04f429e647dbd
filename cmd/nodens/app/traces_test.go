package app

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/collector"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestTraces: misses have traces, hits have none, a reload keeps or replaces the exporter, and the end of the agent sends
// what waits.
func TestTraces(t *testing.T) {
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1") }))
	first, second := collector.Start(t), collector.Start(t)
	p := peer.Ports(t, 2)
	corefile := func(endpoint, more string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n trace otlp %s {\n  service dns\n }\n cache 300\n forward . %s\n %s\n}\n", p[0], p[1], endpoint, up.Addr(), more)
	}
	r := startAgent(t, corefile(first.URL, ""), func(o *options.Agent) { o.NodeName = "node-1" })
	ask := func(name string) {
		t.Helper()
		agenttest.Expect(t, p[0], name, "192.0.2.1")
	}
	ask("a.test.")
	ask("a.test.")
	r.Await("the spans of the miss", func() bool { return len(first.Named("dns.query")) == 1 })
	s := first.Named("dns.query")[0]
	if s.Attrs["dns.question.name"] != "a.test" || s.Resource["service.name"] != "dns" || s.Resource["service.version"] != "dev" || s.Resource["k8s.node.name"] != "node-1" {
		t.Errorf("span %+v", s)
	}
	r.Reload(corefile(first.URL, "loadbalance"), "the new configuration is in force")
	ask("b.test.")
	r.Await("the spans after a reload", func() bool { return len(first.Named("dns.query")) == 2 })
	if n := first.Conns(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	r.Await("the count of the spans, after the collector's reply", func() bool {
		code, text := agenttest.Get(t, p[1], "/metrics")
		return code == http.StatusOK && strings.Contains(text, fmt.Sprintf("nodens_trace_spans_total{endpoint=%q} 6\n", first.URL))
	})
	ask("c.test.")
	r.Reload(corefile(second.URL, ""), "the new configuration is in force")
	ask("d.test.")
	r.Await("the spans of both", func() bool { return len(first.Named("dns.query")) == 3 && len(second.Named("dns.query")) == 1 })
	ask("e.test.")
	r.Stop()
	if n := len(second.Named("dns.query")); n != 2 {
		t.Errorf("%d queries with spans after the end, want 2", n)
	}
}

// TestTraceWarning: an agent with CoreDNS's endpoint types starts, and warns once.
func TestTraceWarning(t *testing.T) {
	p := peer.Ports(t, 1)
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n trace zipkin 127.0.0.1:9411\n whoami\n}\n", p[0]))
	if n := strings.Count(r.Log.String(), "configuration warning"); n != 1 || !strings.Contains(r.Log.String(), "write `trace otlp http://HOST:4318`") {
		t.Errorf("%d warnings:\n%s", n, r.Log.String())
	}
}

// TestTraceService: a collector that is a Service is found in the view of the cluster.
func TestTraceService(t *testing.T) {
	c := collector.Start(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(c.URL, "http://"), ":")
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1") }))
	file := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, file, "apiVersion: v1\nkind: Service\nmetadata: {name: collector, namespace: o}\nspec: {clusterIP: 127.0.0.1}\n")
	p := peer.Ports(t, 1)
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n trace otlp http://collector.o.svc.cluster.local:%s\n kubernetes cluster.local {\n  manifests %s\n }\n forward . %s\n}\n", p[0], port, file, up.Addr()))
	agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
	r.Await("the spans", func() bool { return len(c.Named("dns.query")) == 1 })
	if n := up.CountName("collector.o.svc.cluster.local."); n != 0 {
		t.Errorf("the upstream was asked for the collector %d times", n)
	}
}

// TestTraceHostileCollector: queries are answered whatever the collectors do, and the agent ends.
func TestTraceHostileCollector(t *testing.T) {
	const queries = 500
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1") }))
	ended := make(chan struct{})
	silent, endless, closed := collector.Start(t), collector.Start(t), collector.Start(t)
	t.Cleanup(func() { close(ended) })
	silent.SetReply(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	})
	endless.SetReply(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	closed.Close()
	p := peer.Ports(t, 2)
	text := ""
	for zone, c := range map[string]*collector.Collector{"silent.test": silent, "endless.test": endless, "closed.test": closed} {
		text += fmt.Sprintf("%s:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n trace otlp %s\n forward . %s\n}\n", zone, p[0], p[1], c.URL, up.Addr())
	}
	r := startAgent(t, text)
	for i := range queries {
		for _, zone := range []string{"silent.test.", "endless.test.", "closed.test."} {
			if got := agenttest.Ask(t, p[0], fmt.Sprintf("q%d.%s", i, zone)); got != "192.0.2.1" {
				t.Fatalf("query %d below %s: %q", i, zone, got)
			}
		}
	}
	for zone, c := range map[string]*collector.Collector{"silent": silent, "endless": endless} {
		r.Await("a request to the collector "+zone, func() bool { return c.Requests() > 0 })
	}
	r.AwaitLog("sending traces failed")
	r.Stop()
}
