package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/test/peer"
)

// patience ends a test that would hang; no test measures it.
const patience = 30 * time.Second

// log is a writer that a test can read while the agent writes.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// running is an agent in this process.
type running struct {
	t     *testing.T
	conf  string
	log   *log
	stop  context.CancelFunc
	ended chan error
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// startAgent runs the agent on a Corefile until the test ends, and waits until it
// serves.
func startAgent(t *testing.T, corefile string, args ...string) *running {
	t.Helper()
	return startChanged(t, func(*agent) {}, corefile, args...)
}

// startChanged is startAgent, but for what change does to the agent before it starts.
func startChanged(t *testing.T, change func(*agent), corefile string, args ...string) *running {
	t.Helper()
	r := &running{t: t, conf: filepath.Join(t.TempDir(), "Corefile"), log: new(log), ended: make(chan error, 1)}
	write(t, r.conf, corefile)
	opts, err := parseFlags(append([]string{"-conf", r.conf, "-metrics-listen-address="}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	a, cfg, err := prepare(opts, r.log)
	if err != nil {
		t.Fatal(err)
	}
	change(a)
	go func() { r.ended <- a.run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			if err != nil {
				t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the agent does not end")
		}
	})
	r.until("the agent to serve", func() bool { return strings.Contains(r.log.String(), "msg=serving") })
	return r
}

func (r *running) until(what string, holds func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain for %s; log:\n%s", what, r.log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ask gives the first address of name, or the rcode's name.
func ask(t *testing.T, port uint16, name string) string {
	t.Helper()
	c := dns.Client{Timeout: patience}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err.Error()
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return dns.RcodeToString[m.Rcode]
}

func get(t *testing.T, port uint16, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// reload makes the agent read its Corefile again.
func (r *running) reload(corefile, want string) {
	r.t.Helper()
	write(r.t, r.conf, corefile)
	before := strings.Count(r.log.String(), want)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		r.t.Fatal(err)
	}
	r.until("the log to say "+want, func() bool { return strings.Count(r.log.String(), want) > before })
}

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
	if got := ask(t, first, "x.by.hand."); got != "192.0.2.10" {
		t.Fatalf("before: %s", got)
	}
	if got := ask(t, first, "www.example.org."); got != "192.0.2.1" {
		t.Fatalf("before: %s", got)
	}
	upstream.stop() // from here on, only the cache knows
	r.reload(block(first, "192.0.2.11")+rest, "the new configuration is in force")
	if got := ask(t, first, "x.by.hand."); got != "192.0.2.11" {
		t.Errorf("after a reload: %s", got)
	}
	if got := ask(t, first, "www.example.org."); got != "192.0.2.1" {
		t.Errorf("the cache of a block that did not change: %s", got)
	}
	r.reload("by.hand {\n hsots\n}\n", "the old configuration stays")
	if got := ask(t, first, "x.by.hand."); got != "192.0.2.11" {
		t.Errorf("after a broken reload: %s", got)
	}
	if _, text := get(t, web, "/metrics"); !strings.Contains(text, "coredns_reload_failed_total 1") {
		t.Errorf("the failed reload is not counted:\n%s", text)
	}
	taken, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", second))
	if err != nil {
		t.Fatal(err)
	}
	r.reload(block(second, "192.0.2.12")+rest, "the old configuration stays")
	if got := ask(t, first, "x.by.hand."); got != "192.0.2.11" {
		t.Errorf("after a reload to a port in use: %s", got)
	}
	_ = taken.Close()
	r.reload(block(second, "192.0.2.12")+rest, "the new configuration is in force")
	if got := ask(t, second, "x.by.hand."); got != "192.0.2.12" {
		t.Errorf("on the new port: %s", got)
	}
	if got := ask(t, first, "www.example.org."); got != "192.0.2.1" {
		t.Errorf("on the old port: %s", got)
	}
	full := bytesOfCaches(t, web)
	r.reload(block(second, "192.0.2.12")+strings.Replace(rest, "cache 300", "cache 200", 1), "the new configuration is in force")
	if n := bytesOfCaches(t, web); n >= full {
		t.Errorf("a cache that a reload drops keeps its entries: %v bytes became %v", full, n)
	}
}

// bytesOfCaches is what /metrics says that the caches take.
func bytesOfCaches(t *testing.T, web uint16) (n float64) {
	t.Helper()
	_, text := get(t, web, "/metrics")
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
	write(t, stubs, domains(one))
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n hosts\n}\n", port, web)
	r := startAgent(t, corefile, "-kubednscm", dir, "-localip", "127.0.0.1", "-setupinterface=false", "-setupiptables=false", "-dns.port", fmt.Sprint(port))
	if got := ask(t, port, "www.corp.test."); got != "192.0.2.1" {
		t.Errorf("a stub domain's name is %s", got)
	}
	write(t, stubs, domains(two))
	r.reload(corefile, "the new configuration is in force")
	if got := ask(t, port, "www.corp.test."); got != "192.0.2.2" {
		t.Errorf("after a change: %s", got)
	}
	write(t, stubs, `{"corp.test": `)
	r.reload(corefile, "the old configuration stays")
	if _, text := get(t, web, "/metrics"); !strings.Contains(text, `coredns_nodecache_setup_errors_total{errortype="configmap"} 1`) {
		t.Errorf("the broken ConfigMap is not counted:\n%s", text)
	}
}

// TestReloadDirective: the file is looked at by itself, and a change under the
// manifests of the view does not need it.
func TestReloadDirective(t *testing.T) {
	p := peer.Ports(t, 1)
	corefile := func(ip string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n reload 2s 1s\n hosts {\n %s x.by.hand\n }\n}\n", p[0], ip)
	}
	r := startAgent(t, corefile("192.0.2.1"))
	write(t, r.conf, corefile("192.0.2.2"))
	r.until("the change to be seen", func() bool { return ask(t, p[0], "x.by.hand.") == "192.0.2.2" })
}

// TestMetricNames: what dashboards query is there, with its labels.
func TestMetricNames(t *testing.T) {
	p := peer.Ports(t, 5)
	dnsPort, web, health, ready, up := p[0], p[1], p[2], p[3], p[4]
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 www.example.org\n }\n}\n", up))
	manifests := filepath.Join(t.TempDir(), "m.yaml")
	write(t, manifests, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9]}\n")
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
`, dnsPort, health, ready, web, manifests, up), "-pidfile", pidfile)
	for name, want := range map[string]string{"by.hand.": "192.0.2.9", "web.shop.svc.cluster.local.": "10.96.0.9", "www.example.org.": "192.0.2.1", "no.svc.cluster.local.": "NXDOMAIN"} {
		if got := ask(t, dnsPort, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for _, probe := range []struct {
		port uint16
		path string
	}{{health, "/health"}, {ready, "/ready"}} {
		if code, text := get(t, probe.port, probe.path); code != http.StatusOK || text != "OK" {
			t.Errorf("%s: %d %s", probe.path, code, text)
		}
	}
	_, text := get(t, web, "/metrics")
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	for _, want := range []string{
		`coredns_build_info{goversion="`,
		`coredns_panics_total 0`,
		`nodens_cache_budget_bytes 3.3554432e+07`,
		`coredns_plugin_enabled{name="forward",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_requests_total{family="1",proto="udp",` + srv + `,type="A",view="",zone="."} 4`,
		`coredns_dns_responses_total{plugin="hosts",rcode="NOERROR",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NOERROR",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NXDOMAIN",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="forward",rcode="NOERROR",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_request_duration_seconds_bucket{` + srv + `,view="",zone=".",le="0.00025"}`,
		`coredns_dns_request_duration_seconds_count{` + srv + `,view="",zone="."} 4`,
		`coredns_dns_request_size_bytes_bucket{proto="udp",` + srv + `,view="",zone=".",le="64000"} 4`,
		`coredns_dns_response_size_bytes_bucket{proto="udp",` + srv + `,view="",zone=".",le="64000"} 4`,
		`coredns_dns_do_requests_total{` + srv + `,view="",zone="."} 0`,
		`coredns_cache_entries{` + srv + `,type="success",view="",zones="."} 1`,
		`coredns_cache_requests_total{` + srv + `,view="",zones="."} 1`,
		`coredns_cache_misses_total{` + srv + `,view="",zones="."} 1`,
		`coredns_cache_hits_total{` + srv + `,type="denial",view="",zones="."} 0`,
		`coredns_cache_evictions_total{` + srv + `,type="success",view="",zones="."} 0`,
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
		`coredns_hosts_entries `,
		`coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 0`,
		`nodens_kubernetes_objects{kind="service"} 1`,
		`process_cpu_seconds_total`, `go_goroutines`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	if pid, err := os.ReadFile(pidfile); err != nil || strings.TrimSpace(string(pid)) != fmt.Sprint(os.Getpid()) {
		t.Errorf("the pidfile holds %q, %v", pid, err)
	}
	if !strings.Contains(r.log.String(), `qname=by.hand. qtype=A`) {
		t.Errorf("log does not log queries:\n%s", r.log)
	}
}

// TestTwoViews: server blocks that watch different things, and one scrape of both.
func TestTwoViews(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	block := func(zone, name, ip string) string {
		file := filepath.Join(dir, name+".yaml")
		write(t, file, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {clusterIP: %s, clusterIPs: [%s]}\n", name, ip, ip))
		return fmt.Sprintf("%s:%d {\n bind 127.0.0.1\n kubernetes {\n manifests %s\n }\n prometheus 127.0.0.1:%d\n}\n", zone, p[0], file, p[1])
	}
	startAgent(t, block("one.test", "a", "10.96.0.1")+block("two.test", "b", "10.96.0.2"))
	for name, want := range map[string]string{"a.shop.svc.one.test.": "10.96.0.1", "b.shop.svc.two.test.": "10.96.0.2", "b.shop.svc.one.test.": "NXDOMAIN"} {
		if got := ask(t, p[0], name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if code, text := get(t, p[1], "/metrics"); code != http.StatusOK || !strings.Contains(text, `nodens_kubernetes_objects{kind="service"} 2`) {
		t.Errorf("scrape: %d\n%s", code, text)
	}
}

// TestStartFailures: what keeps the agent from starting says what to do, and
// leaves no socket behind.
func TestStartFailures(t *testing.T) {
	p := peer.Ports(t, 2)
	taken, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	conf := filepath.Join(t.TempDir(), "Corefile")
	for _, c := range []struct{ name, corefile, want string }{
		{"dns port in use", fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n}\n", p[0]), "-dns.port"},
		{"metrics port in use", fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n prometheus 127.0.0.1:%d\n}\n", p[1], p[0]), "choose another address"},
		{"unknown directive", ".:53 {\n forwrad . 127.0.0.1\n}\n", `:2: unknown directive "forwrad" (did you mean "forward"?)`},
		{"no API server", fmt.Sprintf(".:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n kubeconfig /nonexistent\n }\n}\n", p[1]), "kubeconfig"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, conf, c.corefile)
			var stderr bytes.Buffer
			if code := Run([]string{"-conf", conf, "-metrics-listen-address="}, io.Discard, &stderr); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("the error does not say %q:\n%s", c.want, &stderr)
			}
			ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p[1]))
			if err != nil {
				t.Fatalf("a socket is left: %v", err)
			}
			_ = ln.Close()
		})
	}
}

// TestFlags: NodeLocal DNSCache's flags, with its values and its ways of writing
// them, and errors that name the flag.
func TestFlags(t *testing.T) {
	o, err := parseFlags(strings.Fields("-localip 169.254.20.10,10.96.0.10,fd00::a -conf /etc/Corefile -upstreamsvc kube-dns-upstream "+
		"-basecorefile /b -kubednscm /k -setupinterface=false -interfacename x0 -setupiptables=false -syncinterval 30 -skipteardown "+
		"-health-port 8081 -metrics-listen-address 127.0.0.1:9353 -prometheus-listen-address :9254 -pidfile /p -reloadwithsignal -dns.port 1053"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.localIPs) != 3 || o.syncInterval != 30*time.Second || o.healthPort != 8081 || o.dnsPort != 1053 || !o.skipTeardown ||
		o.setupInterface || o.setupIptables || o.interfaceName != "x0" || !o.reloadBySignal || o.upstreamSvc != "kube-dns-upstream" {
		t.Errorf("flags are %+v", o)
	}
	if o, err := parseFlags([]string{"-syncinterval=90s"}, io.Discard); err != nil || o.syncInterval != 90*time.Second {
		t.Errorf("-syncinterval=90s: %v", err)
	}
	for arg, want := range map[string]int{"": 32 << 20, "1048576": 1 << 20, "2048Ki": 2 << 20, "64Mi": 64 << 20, "16Gi": 16 << 30} {
		args := []string{"-cache-size=" + arg}
		if arg == "" {
			args = nil
		}
		if o, err := parseFlags(args, io.Discard); err != nil || o.cacheSize != want {
			t.Errorf("%v: %v, want %d bytes", args, err, want)
		}
	}
	for arg, want := range map[string]string{
		"-localip=169.254.20":    "-localip",
		"-syncinterval=0":        "-syncinterval",
		"-syncinterval=banana":   "-syncinterval",
		"-health-port=70000":     "-health-port",
		"-dns.port=0":            "-dns.port",
		"-readers=-1":            "-readers",
		"-readers=many":          "-readers",
		"-reader-wait=thread":    "-reader-wait",
		"-cache-size=32":         "-cache-size",
		"-cache-size=0Gi":        "-cache-size",
		"-cache-size=17Gi":       "-cache-size",
		"-cache-size=32MB":       "-cache-size",
		"-cache-size=-32Mi":      "-cache-size",
		"-interfacenam=x":        "interfacenam",
		"stray":                  "unknown command",
		"-version=true stray":    "",
		"-log-format=xml -conf=": "",
	} {
		var stderr bytes.Buffer
		if code := Run(strings.Fields(arg), io.Discard, &stderr); code == 0 && want != "" || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, error %q, want it to name %s", arg, code, &stderr, want)
		}
	}
}

// TestVersion: -version is one line.
func TestVersion(t *testing.T) {
	var stdout bytes.Buffer
	if code := Run([]string{"-version"}, &stdout, io.Discard); code != 0 || !strings.HasPrefix(stdout.String(), "nodens-dev linux/") || strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("-version: %d, %q", code, &stdout)
	}
}

// TestLocked: only a held lock, and nothing beside it, lets the agent start without
// its rules.
func TestLocked(t *testing.T) {
	held := &netsetup.Error{Type: netsetup.IptablesLock, Err: netsetup.ErrLocked}
	other := &netsetup.Error{Type: netsetup.Iptables, Err: netsetup.ErrNoTool}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"held", held, true},
		{"held twice", errors.Join(held, held), true},
		{"something else", other, false},
		{"something else beside it", errors.Join(held, other), false},
		{"no error of netsetup", errors.New("x"), false},
	} {
		if got := locked(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
