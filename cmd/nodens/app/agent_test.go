package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestReload: a new Corefile takes effect, a broken one does not and is counted, a
// cache of a block that did not change stays warm and one that did is emptied, ports
// come and go.
func TestReload(t *testing.T) {
	p := peer.Ports(t, 4)
	first, second, web, up := p[0], p[1], p[2], p[3]
	upstream := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 www.example.org\n }\n}\n", up))
	block := func(port uint16, ip string) string {
		return fmt.Sprintf("by.hand:%d {\n bind 127.0.0.1\n hosts {\n %s x.by.hand\n }\n}\n", port, ip)
	}
	rest := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n cache 300\n forward . 127.0.0.1:%d\n}\n", first, web, up)
	r := startAgent(t, block(first, "192.0.2.10")+rest)
	agenttest.Expect(t, first, "x.by.hand.", "192.0.2.10")
	agenttest.Expect(t, first, "www.example.org.", "192.0.2.1")
	upstream.Stop() // from here on, only the cache knows
	r.Reload(block(first, "192.0.2.11")+rest, "the new configuration is in force")
	agenttest.Expect(t, first, "x.by.hand.", "192.0.2.11")
	agenttest.Expect(t, first, "www.example.org.", "192.0.2.1")
	r.Reload("by.hand {\n hsots\n}\n", "the old configuration stays")
	agenttest.Expect(t, first, "x.by.hand.", "192.0.2.11")
	agenttest.ExpectMetrics(t, web, "coredns_reload_failed_total 1")
	taken, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", second))
	check.NoError(t, err)
	r.Reload(block(second, "192.0.2.12")+rest, "the old configuration stays")
	agenttest.Expect(t, first, "x.by.hand.", "192.0.2.11")
	_ = taken.Close()
	r.Reload(block(second, "192.0.2.12")+rest, "the new configuration is in force")
	agenttest.Expect(t, second, "x.by.hand.", "192.0.2.12")
	agenttest.Expect(t, first, "www.example.org.", "192.0.2.1")
	full := bytesOfCaches(t, web)
	r.Reload(block(second, "192.0.2.12")+strings.Replace(rest, "cache 300", "cache 200", 1), "the new configuration is in force")
	if n := bytesOfCaches(t, web); n >= full {
		t.Errorf("a cache that a reload drops keeps its entries: %v bytes became %v", full, n)
	}
}

// bytesOfCaches is what /metrics says that the caches take.
func bytesOfCaches(t *testing.T, web uint16) (n float64) {
	t.Helper()
	_, text := agenttest.Get(t, web, "/metrics")
	_, rest, _ := strings.Cut(text, "\nnodens_cache_bytes ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("nodens_cache_bytes: %v in\n%s", err, text)
	}
	return n
}

// TestStubDomains: the kube-dns ConfigMap's stub domains become zones, a change of
// them is taken on, and a broken one is counted.
func TestStubDomains(t *testing.T) {
	p := peer.Ports(t, 4)
	port, web, one, two := p[0], p[1], p[2], p[3]
	for up, ip := range map[uint16]string{one: "192.0.2.1", two: "192.0.2.2"} {
		startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n %s www.corp.test\n }\n}\n", up, ip))
	}
	dir := t.TempDir()
	stubs := filepath.Join(dir, "stubDomains")
	domains := func(up uint16) string { return fmt.Sprintf(`{"corp.test": ["127.0.0.1:%d"]}`, up) }
	agenttest.WriteFile(t, stubs, domains(one))
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n hosts\n}\n", port, web)
	r := startAgent(t, corefile, withStubs(dir, port))
	agenttest.Expect(t, port, "www.corp.test.", "192.0.2.1")
	agenttest.WriteFile(t, stubs, domains(two))
	r.Reload(corefile, "the new configuration is in force")
	agenttest.Expect(t, port, "www.corp.test.", "192.0.2.2")
	agenttest.WriteFile(t, stubs, `{"corp.test": `)
	r.Reload(corefile, "the old configuration stays")
	agenttest.ExpectMetrics(t, web, `coredns_nodecache_setup_errors_total{errortype="configmap"} 1`)
}

// TestReloadDirective: the file is looked at by itself, and a change under the
// manifests of the view does not need it.
func TestReloadDirective(t *testing.T) {
	t.Parallel() // it waits for the agent to look at files
	p := peer.Ports(t, 1)
	corefile := func(ip string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n reload 2s 1s\n hosts {\n %s x.by.hand\n }\n}\n", p[0], ip)
	}
	r := startAgent(t, corefile("192.0.2.1"))
	agenttest.WriteFile(t, r.Conf, corefile("192.0.2.2"))
	r.Await("the change to be seen", func() bool { return agenttest.Ask(t, p[0], "x.by.hand.") == "192.0.2.2" })
}

// TestMetricNames: what dashboards query is there, with its labels.
func TestMetricNames(t *testing.T) {
	p := peer.Ports(t, 5)
	dnsPort, web, health, ready, up := p[0], p[1], p[2], p[3], p[4]
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 www.example.org\n }\n}\n", up))
	manifests := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, manifests, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9]}\n")
	pidfile := filepath.Join(t.TempDir(), "pid")
	r := startAgent(t, fmt.Sprintf(`.:%d {
    bind 127.0.0.1
    errors
    log
    health 127.0.0.1:%d
    ready 127.0.0.1:%d
    prometheus 127.0.0.1:%d
    hosts {
        192.0.2.9 by.hand
        fallthrough
    }
    kubernetes cluster.local {
        manifests %s
    }
    cache 30
    forward . 127.0.0.1:%d
}
`, dnsPort, health, ready, web, manifests, up), func(o *options.Agent) { o.Pidfile = pidfile })
	for name, want := range map[string]string{"by.hand.": "192.0.2.9", "web.shop.svc.cluster.local.": "10.96.0.9", "www.example.org.": "192.0.2.1", "no.svc.cluster.local.": "NXDOMAIN"} {
		agenttest.Expect(t, dnsPort, name, want)
	}
	for _, probe := range []struct {
		port uint16
		path string
	}{{health, "/health"}, {ready, "/ready"}} {
		if code, text := agenttest.Get(t, probe.port, probe.path); code != http.StatusOK || text != "OK" {
			t.Errorf("%s: %d %s", probe.path, code, text)
		}
	}
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	agenttest.ExpectMetrics(t, web,
		`coredns_build_info{goversion="`,
		`coredns_panics_total 0`,
		`nodens_cache_budget_bytes 3.3554432e+07`,
		`coredns_plugin_enabled{name="forward",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_requests_total{family="1",proto="udp",`+srv+`,type="A",view="",zone="."} 4`,
		`coredns_dns_responses_total{plugin="hosts",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NXDOMAIN",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="forward",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_request_duration_seconds_bucket{`+srv+`,view="",zone=".",le="0.00025"}`,
		`coredns_dns_request_duration_seconds_count{`+srv+`,view="",zone="."} 4`,
		`coredns_dns_request_size_bytes_bucket{proto="udp",`+srv+`,view="",zone=".",le="64000"} 4`,
		`coredns_dns_response_size_bytes_bucket{proto="udp",`+srv+`,view="",zone=".",le="64000"} 4`,
		`coredns_dns_do_requests_total{`+srv+`,view="",zone="."} 0`,
		`coredns_cache_entries{`+srv+`,type="success",view="",zones="."} 1`,
		`coredns_cache_requests_total{`+srv+`,view="",zones="."} 1`,
		`coredns_cache_misses_total{`+srv+`,view="",zones="."} 1`,
		`coredns_cache_hits_total{`+srv+`,type="denial",view="",zones="."} 0`,
		`coredns_cache_evictions_total{`+srv+`,type="success",view="",zones="."} 0`,
		`coredns_cache_drops_total{`, `coredns_cache_prefetch_total{`, `coredns_cache_served_stale_total{`,
		fmt.Sprintf(`coredns_proxy_request_duration_seconds_count{proxy_name="forward",rcode="NOERROR",to="127.0.0.1:%d"} 1`, up),
		fmt.Sprintf(`coredns_proxy_healthcheck_failures_total{proxy_name="forward",to="127.0.0.1:%d"} 0`, up),
		fmt.Sprintf(`coredns_proxy_conn_cache_misses_total{proto="udp",proxy_name="forward",to="127.0.0.1:%d"} 1`, up),
		`coredns_proxy_conn_cache_hits_total{proto="tcp",`,
		`coredns_forward_healthcheck_broken_total 0`,
		`coredns_forward_max_concurrent_rejects_total 0`,
		fmt.Sprintf(`coredns_forward_requests_total{to="127.0.0.1:%d"} 1`, up),
		fmt.Sprintf(`coredns_forward_responses_total{rcode="NOERROR",to="127.0.0.1:%d"} 1`, up),
		fmt.Sprintf(`coredns_forward_request_duration_seconds_count{rcode="NOERROR",to="127.0.0.1:%d"} 1`, up),
		fmt.Sprintf(`coredns_forward_healthcheck_failures_total{to="127.0.0.1:%d"} 0`, up),
		`coredns_health_request_duration_seconds_count`,
		`coredns_health_request_failures_total 0`,
		`coredns_reload_failed_total 0`,
		`coredns_reload_version_info{hash="sha512",value="`,
		`coredns_hosts_entries{hostsfile="/etc/hosts"} `,
		`coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 0`,
		`nodens_kubernetes_objects{kind="service"} 1`,
		`process_cpu_seconds_total`, `go_goroutines`,
	)
	if pid, err := os.ReadFile(pidfile); err != nil || strings.TrimSpace(string(pid)) != fmt.Sprint(os.Getpid()) {
		t.Errorf("the pidfile holds %q, %v", pid, err)
	}
	if !strings.Contains(r.Log.String(), `qname=by.hand. qtype=A`) {
		t.Errorf("log does not log queries:\n%s", r.Log)
	}
}

// TestTwoViews: server blocks that watch different things, and one scrape of both.
func TestTwoViews(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	block := func(zone, name, ip string) string {
		file := filepath.Join(dir, name+".yaml")
		agenttest.WriteFile(t, file, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {clusterIP: %s, clusterIPs: [%s]}\n", name, ip, ip))
		return fmt.Sprintf("%s:%d {\n bind 127.0.0.1\n kubernetes {\n manifests %s\n }\n prometheus 127.0.0.1:%d\n}\n", zone, p[0], file, p[1])
	}
	startAgent(t, block("one.test", "a", "10.96.0.1")+block("two.test", "b", "10.96.0.2"))
	for name, want := range map[string]string{"a.shop.svc.one.test.": "10.96.0.1", "b.shop.svc.two.test.": "10.96.0.2", "b.shop.svc.one.test.": "NXDOMAIN"} {
		agenttest.Expect(t, p[0], name, want)
	}
	agenttest.ExpectMetrics(t, p[1], `nodens_kubernetes_objects{kind="service"} 2`)
}

// TestPermanentFailures: the agent starts without its rules if a later check may succeed, and ends if
// none can.
func TestPermanentFailures(t *testing.T) {
	failure := func(err error) error { return &netsetup.Error{Type: netsetup.Iptables, Err: err} }
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"locked", failure(netsetup.ErrLocked), false},
		{"a conflict", failure(netsetup.ErrConflict), false},
		{"a rule that iptables can't read", failure(errors.New("table is incompatible")), false},
		{"no program", failure(netsetup.ErrNoTool), true},
		{"no permission", failure(fs.ErrPermission), true},
		{"no permission beside a lock", errors.Join(failure(netsetup.ErrLocked), failure(fs.ErrPermission)), true},
	} {
		if got := netsetup.IsPermanent(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
