package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// equal compares Configs: addresses are plain values.
var equal = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func addrs(list ...string) (a []netip.Addr) { return each(list, netip.MustParseAddr) }
func ports(list ...string) []netip.AddrPort { return each(list, netip.MustParseAddrPort) }

// targets are upstreams by their addresses.
func targets(list ...string) []Target {
	return each(list, func(s string) Target { return Target{Addr: netip.MustParseAddrPort(s)} })
}

func each[T any](list []string, f func(string) T) []T {
	out := make([]T, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}

func names(t testing.TB, list ...string) []wire.Name {
	t.Helper()
	return each(list, func(s string) wire.Name {
		n, err := wire.ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	})
}

// write makes a file below a folder of the test's own and gives its path.
func write(t testing.TB, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// node are the options of an agent as it is deployed, with nothing of the machine
// the test runs on.
func node(t testing.TB) Options {
	t.Helper()
	return Options{
		LocalIPs:        addrs("169.254.20.10", "10.96.0.10"),
		UpstreamService: "kube-dns-upstream",
		ResolvConf:      write(t, t.TempDir(), "resolv.conf", "search example.org\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n"),
		LookupEnv: func(name string) (string, bool) {
			return "10.96.0.11", name == "KUBE_DNS_UPSTREAM_SERVICE_HOST"
		},
		Interface: func(name string) ([]netip.Addr, error) {
			switch name {
			case "eth0":
				return addrs("192.0.2.7", "2001:db8::7"), nil
			case "bare":
				return nil, nil
			}
			return nil, os.ErrNotExist
		},
	}
}

func parse(t testing.TB, text string) (*Config, error) {
	t.Helper()
	return Parse(Source{Path: "Corefile", Text: []byte(text), Options: node(t)})
}

func mustParse(t testing.TB, text string) *Config {
	t.Helper()
	c, err := parse(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// nodeLocal has the shape of the Corefile that NodeLocal DNSCache is installed with.
const nodeLocal = `
cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus :9253
    health __PILLAR__LOCAL__DNS__:8080
}
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus :9253
}
ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus :9253
}
.:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
}
`

func TestNodeLocalCorefile(t *testing.T) {
	c := mustParse(t, nodeLocal)
	if len(c.Blocks) != 4 {
		t.Fatalf("%d blocks, want 4", len(c.Blocks))
	}
	listen := ports("169.254.20.10:53", "10.96.0.10:53")
	zone := names(t, "cluster.local")
	want := &Block{
		Zones: zone, Port: 53, File: "Corefile", Line: 2, Listen: listen,
		Bind:       &Bind{Addrs: addrs("169.254.20.10", "10.96.0.10")},
		Reload:     &Reload{Interval: 30 * time.Second, Jitter: 15 * time.Second},
		Health:     &Health{Addr: "169.254.20.10:8080"},
		Prometheus: &Prometheus{Addr: ":9253"},
		Errors:     &Errors{},
		Loop:       &Switch{},
		Cache: &Cache{
			Zones:    zone,
			Success:  CacheLimits{Entries: 9984, MaxTTL: 30 * time.Second, MinTTL: 5 * time.Second},
			Denial:   CacheLimits{Entries: 9984, MaxTTL: 5 * time.Second, MinTTL: 5 * time.Second},
			Servfail: 5 * time.Second,
		},
		Forward: &Forward{
			From: wire.Root, To: targets("10.96.0.11:53"), ForceTCP: true, MaxFails: 2, Expire: 10 * time.Second,
			ReadTimeout: 2 * time.Second, HealthInterval: 500 * time.Millisecond, HealthDomain: wire.Root,
		},
	}
	if diff := cmp.Diff(want, c.Blocks[0], equal); diff != "" {
		t.Errorf("block of cluster.local (-want +got):\n%s", diff)
	}
	last := c.Blocks[3]
	if diff := cmp.Diff(targets("192.0.2.1:53", "[fe80::1%eth0]:53"), last.Forward.To, equal); diff != "" {
		t.Errorf("upstreams of the root (-want +got):\n%s", diff)
	}
	if len(last.Forward.Files) != 1 || filepath.Base(last.Forward.Files[0]) != "resolv.conf" {
		t.Errorf("files of the root: %q", last.Forward.Files)
	}
	for i, line := range []int{2, 17, 28, 39} {
		if got := c.Blocks[i].Line; got != line {
			t.Errorf("block %d is at line %d, want %d", i, got, line)
		}
	}
}

// clusterAddon has the shape of the Corefile that kubeadm installs.
const clusterAddon = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`

func TestClusterAddonCorefile(t *testing.T) {
	resolv := write(t, t.TempDir(), "resolv.conf", "nameserver 192.0.2.1\n")
	c, err := Parse(Source{Text: []byte(strings.ReplaceAll(clusterAddon, "/etc/resolv.conf", resolv))})
	if err != nil {
		t.Fatal(err)
	}
	want := &Kubernetes{
		Zones: names(t, "cluster.local", "in-addr.arpa", "ip6.arpa"), Pods: PodsInsecure, TTL: 30, StartupTimeout: 5 * time.Second,
		ScopeIdle: time.Hour, ScopeMax: 32,
		Fallthrough: &Fallthrough{Zones: names(t, "in-addr.arpa", "ip6.arpa")},
	}
	b := c.Blocks[0]
	if diff := cmp.Diff(want, b.Kubernetes, equal); diff != "" {
		t.Errorf("kubernetes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ports("[::]:53"), b.Listen, equal); diff != "" {
		t.Errorf("listens on (-want +got):\n%s", diff)
	}
	if b.Loadbalance == nil || b.Ready == nil || b.Ready.Addr != ":8181" || b.Health.Lameduck != 5*time.Second || b.Forward.MaxConcurrent != 1000 {
		t.Errorf("block: %+v", b)
	}
}

func TestBlocks(t *testing.T) {
	type block struct {
		zones  []string
		port   uint16
		line   int
		listen []string
	}
	local := []string{"169.254.20.10:53", "10.96.0.10:53"}
	for _, tt := range []struct {
		name, text string
		want       []block
	}{
		{"without braces", "example.org\nerrors\nlog\n", []block{{[]string{"example.org."}, 53, 1, local}}},
		{"without an opening brace", "a.test\nerrors\n}\nb.test\nlog {\n}\n", []block{{[]string{"a.test."}, 53, 1, local}, {[]string{"b.test."}, 53, 4, local}}},
		{"brace on the next line", "example.org\n{\nerrors\n}\n", []block{{[]string{"example.org."}, 53, 1, local}}},
		{"keys on several lines", "\na.test,\nb.test {\n}\n", []block{{[]string{"a.test.", "b.test."}, 53, 2, local}}},
		{"comma without a space", "a.test,b.test {\n}\n", []block{{[]string{"a.test.", "b.test."}, 53, 1, local}}},
		{"a zone twice", "a.test A.Test. {\n}\n", []block{{[]string{"a.test."}, 53, 1, local}}},
		{"two ports", "a.test:53 b.test:54 {\n}\n", []block{
			{[]string{"a.test."}, 53, 1, local},
			{[]string{"b.test."}, 54, 1, []string{"169.254.20.10:54", "10.96.0.10:54"}},
		}},
		{"equal keys on different addresses", "a.test {\nbind 192.0.2.1\n}\na.test {\nbind 192.0.2.2\n}\n", []block{
			{[]string{"a.test."}, 53, 1, []string{"192.0.2.1:53"}},
			{[]string{"a.test."}, 53, 4, []string{"192.0.2.2:53"}},
		}},
		{"bind to an interface", "a.test {\nbind eth0\n}\n", []block{{[]string{"a.test."}, 53, 1, []string{"192.0.2.7:53", "[2001:db8::7]:53"}}}},
		{"snippet", "(common) {\nerrors\n}\na.test {\nimport common\n}\nb.test {\nimport common\n}\n", []block{
			{[]string{"a.test."}, 53, 4, local},
			{[]string{"b.test."}, 53, 7, local},
		}},
		{"comment and quotes", "# a zone\n\"a.test\" { # here\nhosts {\n192.0.2.1 \"h.a.test\"\n}\n}\n", []block{{[]string{"a.test."}, 53, 2, local}}},
		{"a brace left out behind an option block", "a.test {\ncache {\nservfail 1s\n}\n", []block{{[]string{"a.test."}, 53, 1, local}}},
		{"options on one line", "a.test {\nhealth { lameduck 5s }\n}\n", []block{{[]string{"a.test."}, 53, 1, local}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []block
			for _, b := range mustParse(t, tt.text).Blocks {
				g := block{port: b.Port, line: b.Line}
				for _, z := range b.Zones {
					g.zones = append(g.zones, z.String())
				}
				for _, a := range b.Listen {
					g.listen = append(g.listen, a.String())
				}
				got = append(got, g)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(block{})); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("NODENS_TEST_ZONE", "env.test")
	t.Setenv("NODENS_TEST_WORD", "errors")
	t.Setenv("NODENS_TEST_TTL", "77")
	c := mustParse(t, "x.{$NODENS_TEST_ZONE} {\n{$NODENS_TEST_WORD}\ncache {%NODENS_TEST_TTL%}\n}\n")
	b := c.Blocks[0]
	if got := b.Zones[0].String(); got != "x.env.test." || b.Line != 1 || b.Errors == nil || b.Cache.Success.MaxTTL != 77*time.Second {
		t.Errorf("zone %s, block %+v", got, b)
	}
}

func TestDefaultPort(t *testing.T) {
	c, err := Parse(Source{Text: []byte("a.test b.test:54 {\n}\n"), Options: Options{Port: 1053}})
	if err != nil {
		t.Fatal(err)
	}
	if got := []uint16{c.Blocks[0].Port, c.Blocks[1].Port}; got[0] != 1053 || got[1] != 54 {
		t.Errorf("ports %v, want 1053 and 54", got)
	}
}

func TestLoad(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, "common", "errors\n")
	zones := write(t, folder, "zones.conf", "b.test {\nimport common\n}\n")
	path := write(t, folder, "Corefile", "a.test {\nimport common\nlog\n}\nimport *.conf\n")
	c, err := Load(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Blocks) != 2 || c.Blocks[0].Errors == nil || c.Blocks[1].Errors == nil {
		t.Fatalf("blocks %+v", c.Blocks)
	}
	if b := c.Blocks[1]; b.File != zones || b.Line != 1 {
		t.Errorf("the imported block is at %s:%d", b.File, b.Line)
	}
	if diff := cmp.Diff([]string{path, filepath.Join(folder, "common"), zones}, c.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	again, err := Load(path, Options{})
	if err != nil || again.Hash != c.Hash || len(c.Hash) != 128 {
		t.Errorf("hash %q, then %q (%v)", c.Hash, again.Hash, err)
	}
	write(t, folder, "common", "errors\nerors\n")
	_, err = Load(path, Options{})
	if want := filepath.Join(folder, "common") + `:2: unknown directive "erors"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	write(t, folder, "common", "errors\n# changed\n")
	if changed, err := Load(path, Options{}); err != nil || changed.Hash == c.Hash {
		t.Errorf("a change in an import leaves the hash (%v)", err)
	}
}

func TestLoadMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := Load(path, Options{})
	if err == nil || !strings.HasPrefix(err.Error(), path+": can't read the Corefile: ") {
		t.Errorf("error %v", err)
	}
}
