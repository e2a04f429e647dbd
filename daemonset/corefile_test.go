package daemonset

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Addresses that replace the placeholders in these tests.
const (
	clusterDNS  = "10.96.12.34" // Service kube-dns-upstream
	kubeDNS     = "10.96.0.10"  // Service kube-dns
	nodeServers = "192.0.2.53"  // the node's resolv.conf
)

// parse reads a base Corefile as the agent does with these arguments, in a pod with the
// environment and the files of the cluster above.
func parse(t *testing.T, corefile string, args map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+nodeServers+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var local []netip.Addr
	for ip := range strings.FieldsFuncSeq(args["localip"], func(r rune) bool { return r == ',' }) {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			t.Fatalf("-localip: %v", err)
		}
		local = append(local, addr)
	}
	env := map[string]string{"KUBE_DNS_UPSTREAM_SERVICE_HOST": clusterDNS, "KUBE_DNS_SERVICE_HOST": kubeDNS}
	c, err := config.Parse(config.Source{
		Path: "Corefile.base",
		// The volume of the hand-over directory is not mounted here.
		Text: []byte(strings.ReplaceAll(corefile, "/var/lib/nodens/", dir+"/")),
		Options: config.Options{
			LocalIPs:        local,
			UpstreamService: args["upstreamsvc"],
			ResolvConf:      resolv,
			LookupEnv:       func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		},
	})
	if err != nil {
		t.Fatalf("the Corefile is refused: %v", err)
	}
	return c
}

// blockOf returns the block of a zone. It fails the test if there is none.
func blockOf(t *testing.T, c *config.Config, zone string) *config.Block {
	t.Helper()
	name := parseName(t, zone)
	for _, b := range c.Blocks {
		for _, z := range b.Zones {
			if z == name {
				return b
			}
		}
	}
	t.Fatalf("no block has the zone %s", zone)
	return nil
}

func parseName(t *testing.T, text string) wire.Name {
	t.Helper()
	name, err := wire.ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// stringsOf returns the values of a list as text, in the same order.
func stringsOf[T interface{ String() string }](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

func TestCorefile(t *testing.T) {
	objects := loadManifest(t)
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	_, container := podSpec(t)
	tests := []struct {
		name, localip string
		listen        []string
	}{
		{"link-local", localIP, []string{localIP}},
		{"takeover", localIP + "," + kubeDNS, []string{localIP, kubeDNS}},
		{"both families", localIP + ",fd00::10", []string{localIP, "fd00::10"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := flagsOf(t, container.Args)
			args["localip"] = tt.localip
			c := parse(t, maps.Data["Corefile"], args)
			if got := len(c.Blocks); got != 2 {
				t.Errorf("%d blocks, want one for the cluster and one for other names", got)
			}
			for zone, to := range map[string]string{
				"cluster.local": clusterDNS, "in-addr.arpa": clusterDNS, "ip6.arpa": clusterDNS, ".": nodeServers,
			} {
				b := blockOf(t, c, zone)
				if d := cmp.Diff(tt.listen, stringsOf(b.Bind.Addrs)); d != "" {
					t.Errorf("zone %s listens at (-want +got):\n%s", zone, d)
				}
				if d := cmp.Diff([]string{to + ":53"}, stringsOf(b.Forward.To)); d != "" {
					t.Errorf("zone %s is forwarded to (-want +got):\n%s", zone, d)
				}
				if b.Cache == nil || b.Errors == nil || b.Reload == nil || b.Loop == nil || b.Prometheus == nil {
					t.Errorf("zone %s lacks one of cache, errors, reload, loop, prometheus", zone)
				}
			}
			if blockOf(t, c, ".").Kubernetes != nil {
				t.Error("the block for other names has the kubernetes directive")
			}
		})
	}
}

func TestClusterZone(t *testing.T) {
	maps, _ := findObject[*corev1.ConfigMap](t, loadManifest(t), "")
	_, container := podSpec(t)
	c := parse(t, maps.Data["Corefile"], flagsOf(t, container.Args))
	k := blockOf(t, c, "cluster.local").Kubernetes
	if k == nil {
		t.Fatal("the cluster zone's block has no kubernetes directive")
	}
	if k.Pods != config.PodsInsecure || k.TTL != 30 {
		t.Errorf("pods %v and TTL %d, want %v and 30 as in the cluster's own DNS", k.Pods, k.TTL, config.PodsInsecure)
	}
	reverse := []wire.Name{parseName(t, "in-addr.arpa"), parseName(t, "ip6.arpa")}
	if d := cmp.Diff(append([]wire.Name{parseName(t, "cluster.local")}, reverse...), k.Zones); d != "" {
		t.Errorf("zones (-want +got):\n%s", d)
	}
	if k.Fallthrough == nil {
		t.Fatal("addresses outside the cluster do not fall through to the upstream")
	}
	if d := cmp.Diff(reverse, k.Fallthrough.Zones); d != "" {
		t.Errorf("zones that fall through (-want +got):\n%s", d)
	}
	if k.Scope != config.ScopeNode || k.NoEndpoints {
		t.Errorf("scope %v, no endpoints %v: want the endpoints that the node uses", k.Scope, k.NoEndpoints)
	}
	if k.Endpoint != "" || k.Kubeconfig != "" || k.Manifests != nil {
		t.Error("the API server is not that of the pod's service account")
	}
}

// TestPorts: the Corefile, probes, Services and annotations have the same ports.
func TestPorts(t *testing.T) {
	objects := loadManifest(t)
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	spec, container := podSpec(t)
	c := parse(t, maps.Data["Corefile"], flagsOf(t, container.Args))
	b := blockOf(t, c, "cluster.local")
	if b.Health == nil || b.Ready == nil {
		t.Fatal("the cluster zone's block lacks health or ready")
	}
	for _, tt := range []struct {
		name, addr string
		get        *corev1.HTTPGetAction
	}{
		{"liveness", b.Health.Addr, container.LivenessProbe.HTTPGet},
		{"readiness", b.Ready.Addr, container.ReadinessProbe.HTTPGet},
	} {
		if got := net.JoinHostPort(tt.get.Host, tt.get.Port.String()); got != tt.addr {
			t.Errorf("the %s probe asks %s, the Corefile serves %s", tt.name, got, tt.addr)
		}
	}
	grace := *spec.TerminationGracePeriodSeconds
	if lameduck := int64(b.Health.Lameduck.Seconds()); lameduck+5 >= grace {
		t.Errorf("lameduck of %d s and 5 s to stop exceed the grace period of %d s", lameduck, grace)
	}
	_, port, err := net.SplitHostPort(b.Prometheus.Addr)
	if err != nil {
		t.Fatal(err)
	}
	metrics, _ := findObject[*corev1.Service](t, objects, "node-local-dns")
	if got := strconv.Itoa(metrics.Spec.Ports[0].TargetPort.IntValue()); got != port {
		t.Errorf("Service %s leads to port %s, metrics are at %s", metrics.Name, got, port)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	for name, annotations := range map[string]map[string]string{
		"Service": metrics.Annotations, "pod": set.Spec.Template.Annotations,
	} {
		if annotations["prometheus.io/scrape"] != "true" || annotations["prometheus.io/port"] != port {
			t.Errorf("the %s's annotations are %v, metrics are at port %s", name, annotations, port)
		}
	}
}

// TestDeployed: the agent accepts the Corefiles and arguments of NodeLocal DNSCache, in both
// of its modes.
func TestDeployed(t *testing.T) {
	tests := []struct {
		mode   string
		listen []string
		// cluster is the upstream of the cluster's names.
		cluster string
	}{
		{"iptables", []string{localIP, kubeDNS}, clusterDNS},
		{"ipvs", []string{localIP}, kubeDNS},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			corefile, err := os.ReadFile(filepath.Join("testdata", tt.mode, "Corefile.base"))
			if err != nil {
				t.Fatal(err)
			}
			args, err := os.ReadFile(filepath.Join("testdata", tt.mode, "args"))
			if err != nil {
				t.Fatal(err)
			}
			c := parse(t, string(corefile), flagsOf(t, strings.Fields(string(args))))
			for zone, to := range map[string]string{
				"cluster.local": tt.cluster, "in-addr.arpa": tt.cluster, "ip6.arpa": tt.cluster, ".": nodeServers,
			} {
				b := blockOf(t, c, zone)
				if d := cmp.Diff(tt.listen, stringsOf(b.Bind.Addrs)); d != "" {
					t.Errorf("zone %s listens at (-want +got):\n%s", zone, d)
				}
				if d := cmp.Diff([]string{to + ":53"}, stringsOf(b.Forward.To)); d != "" {
					t.Errorf("zone %s is forwarded to (-want +got):\n%s", zone, d)
				}
				if got, want := b.Forward.ForceTCP, zone != "."; got != want {
					t.Errorf("zone %s: force_tcp is %v, want %v", zone, got, want)
				}
			}
			b := blockOf(t, c, "cluster.local")
			if b.Health == nil || b.Health.Addr != localIP+":8080" {
				t.Errorf("health is %v, want it at %s:8080", b.Health, localIP)
			}
			limits := [2]config.CacheLimits{b.Cache.Success, b.Cache.Denial}
			for i, seconds := range []float64{30, 5} {
				if limits[i].Entries != 9984 || limits[i].MaxTTL.Seconds() != seconds {
					t.Errorf("cache limits %+v, want 9984 entries for at most %v s", limits[i], seconds)
				}
			}
		})
	}
}
