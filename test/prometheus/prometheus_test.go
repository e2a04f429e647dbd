package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/daemonset/monitoring"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// startUpstream starts an upstream and returns its address. Names below "none." do not exist, names
// below "broken." are SERVFAIL, and all others have an IPv4 address.
func startUpstream(t *testing.T) (addr string) {
	t.Helper()
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		switch name := q.Question[0].Name; {
		case strings.HasSuffix(name, "none."):
			return fakedns.Negative(q, dns.RcodeNameError, 60)
		case strings.HasSuffix(name, "broken."):
			return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		default:
			return fakedns.Address(q, 60, "192.0.2.1")
		}
	})).Addr().String()
}

// corefile is the Corefile of the scraped agent. Its parameters are the ports of DNS and of
// metrics, the folder of manifests and the upstream.
const corefile = `.:%d {
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        manifests %s
        fallthrough in-addr.arpa ip6.arpa
    }
    cache 30
    forward . %s {
        max_rate 900
    }
}
`

// clusterOnlyMetrics are prefixes of metrics that only an agent in a cluster has; test/e2e queries
// them.
var clusterOnlyMetrics = []string{"coredns_kubernetes_", "nodens_netsetup_"}

// TestDashboardData: Prometheus has data for every query of the dashboard and of common
// CoreDNS dashboards after the agent has answered queries, and no alert fires.
func TestDashboardData(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("prometheus is missing; `make test` installs it")
	}
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir, ports := t.TempDir(), peer.Ports(t, 3)
	text := fmt.Sprintf(corefile, ports[0], ports[1], filepath.Join(root, "cmd/nodens/sample/manifests"), startUpstream(t))
	agent := peer.StartServer(t, text, peer.Command{Name: "nodens"})
	asked := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ports[0])
	agent.Must(t, "the agent to answer", peer.Answers(asked))

	rules := writeJSON(t, dir, "rules.json", map[string]any{"groups": readRules(t)})
	config, err := PrometheusConfig([]ScrapeConfig{{Name: "agents", Static: []StaticConfig{{
		Targets: []string{fmt.Sprintf("127.0.0.1:%d", ports[1])}, Labels: map[string]string{"job": Job, "node": "a"},
	}}}}, rules)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "prometheus.json"), string(config))
	addr := fmt.Sprintf("127.0.0.1:%d", ports[2])
	prometheus := peer.Start(t, peer.Command{Name: "prometheus", Path: "prometheus", Args: PrometheusArgs(filepath.Join(dir, "prometheus.json"), filepath.Join(dir, "data"), addr)})
	s := Prometheus{URL: "http://" + addr}

	queries, err := Queries(monitoring.Dashboard)
	if err != nil {
		t.Fatal(err)
	}
	queries = slices.DeleteFunc(append(queries, CommunityQueries...), func(q Query) bool {
		return slices.ContainsFunc(clusterOnlyMetrics, func(prefix string) bool { return strings.Contains(q.Expr, prefix) })
	})
	if len(queries) < 80 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	prometheus.Must(t, "every query to have data", func(ctx context.Context) error {
		err := sendTraffic(ctx, asked)
		if err == nil {
			queries, err = s.WithoutData(ctx, queries)
		}
		if err == nil && len(queries) > 0 {
			err = fmt.Errorf("no data for %+v", queries)
		}
		return err
	})
	// A fifth of the queries fail on purpose. A busy machine has the agent wait for a core.
	if fire, err := s.Query(t.Context(), `ALERTS{alertname!~"NodensErrorsHigh|NodensSocketWaitHigh"}`); err != nil || len(fire) > 0 {
		t.Errorf("a healthy agent raises %v (%v)", fire, err)
	}
	if none, err := s.QueryData(t.Context(), "coredns_no_such_metric"); !errors.Is(err, errNoData) {
		t.Errorf("an unknown metric is %v (%v)", none, err)
	}
}

// sendTraffic sends queries for all panels: hits and misses, both protocols, every rcode they name,
// the DO bit.
func sendTraffic(ctx context.Context, server netip.AddrPort) error {
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network}
		for _, name := range []string{"web.shop.svc.cluster.local.", "gone.shop.svc.cluster.local.", "a.example.org.", "b.none.", "c.broken."} {
			q := new(dns.Msg).SetQuestion(name, dns.TypeA)
			q.SetEdns0(1232, true)
			if _, _, err := c.ExchangeContext(ctx, q, server.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
