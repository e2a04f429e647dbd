// These tests use fields, refused and defaultForward, which are not exported.

package config

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// one parses text as the only content of a block of zone example.org and gives the
// directive's value.
func one(t *testing.T, directive, text string) any {
	t.Helper()
	b := mustParse(t, "example.org {\n"+text+"\n}\n").Blocks[0]
	for _, s := range fields() {
		if s.name == directive {
			return reflect.ValueOf(b).Elem().Field(s.index).Interface()
		}
	}
	t.Fatalf("no directive %q", directive)
	return nil
}

func TestDirectives(t *testing.T) {
	zone := names(t, "example.org")
	cache := func(edit func(*Cache)) *Cache {
		c := defaultCache()
		c.Zones = zone
		edit(&c)
		return &c
	}
	forward := func(edit func(*Forward)) *Forward {
		f := defaultForward()
		f.To = targets("192.0.2.1:53")
		edit(&f)
		return &f
	}
	hosts := func(edit func(*Hosts)) *Hosts {
		h := &Hosts{File: "/etc/hosts", Zones: zone, TTL: 3600, Reload: 5 * time.Second}
		edit(h)
		return h
	}
	kubernetes := func(edit func(*Kubernetes)) *Kubernetes {
		k := &Kubernetes{Zones: zone, TTL: 5, StartupTimeout: 5 * time.Second, ScopeIdle: time.Hour, ScopeMax: 32}
		edit(k)
		return k
	}
	manifests := t.TempDir()
	write(t, manifests, "a.yaml", "")
	resolv := write(t, t.TempDir(), "resolv.conf", "# none\nnameserver\nnameserver ns.example.org\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\nnameserver 192.0.2.1 \n")
	searched := write(t, t.TempDir(), "search.conf", "search a.test b.test\nnameserver 192.0.2.1\n")

	for _, tt := range []struct {
		name, directive, text string
		want                  any
	}{
		{"addresses", "bind", "bind 192.0.2.1 2001:db8::1 192.0.2.1", &Bind{Addrs: addrs("192.0.2.1", "2001:db8::1")}},
		{"with a zone", "bind", "bind fe80::1%eth0", &Bind{Addrs: addrs("fe80::1%eth0")}},
		{"interface", "bind", "bind eth0", &Bind{Addrs: addrs("192.0.2.7", "2001:db8::7")}},
		{"except", "bind", "bind eth0 127.0.0.1 {\nexcept 192.0.2.7\n}", &Bind{Addrs: addrs("2001:db8::7", "127.0.0.1")}},
		{"twice", "bind", "bind eth0 {\nexcept 2001:db8::7\n}\nbind 127.0.0.1", &Bind{Addrs: addrs("192.0.2.7", "127.0.0.1")}},

		{"default", "bufsize", "bufsize", &Bufsize{Size: 1232}},
		{"least", "bufsize", "bufsize 512", &Bufsize{Size: 512}},
		{"most", "bufsize", "bufsize 65535", &Bufsize{Size: 65535}},

		{"default", "reload", "reload", &Reload{Interval: 30 * time.Second, Jitter: 15 * time.Second}},
		{"interval", "reload", "reload 10s", &Reload{Interval: 10 * time.Second, Jitter: 5 * time.Second}},
		{"jitter", "reload", "reload 10s 2s", &Reload{Interval: 10 * time.Second, Jitter: 2 * time.Second}},
		{"no jitter", "reload", "reload 2s 0s", &Reload{Interval: 2 * time.Second}},
		{"off", "reload", "reload off", &Reload{}},
		{"zero", "reload", "reload 0", &Reload{}},

		{"default", "health", "health", &Health{Addr: ":8080"}},
		{"address", "health", "health localhost:8091 {\nlameduck 1s\n}", &Health{Addr: "localhost:8091", Lameduck: time.Second}},
		{"one of the local IPs", "health", "health __PILLAR__LOCAL__DNS__:8080", &Health{Addr: "169.254.20.10:8080"}},
		{"default", "ready", "ready", &Ready{Addr: ":8181"}},
		{"address", "ready", "ready [::1]:1 {\nmonitor continuously\n}", &Ready{Addr: "[::1]:1"}},
		{"until-ready", "ready", "ready {\nmonitor until-ready\n}", &Ready{Addr: ":8181"}},
		{"default", "prometheus", "prometheus", &Prometheus{Addr: "localhost:9153"}},
		{"placeholder", "prometheus", "prometheus __PROMETHEUS__ENDPOINT__", &Prometheus{Addr: ":9253"}},

		{"default", "errors", "errors", &Errors{}},
		{"stdout", "errors", "errors stdout {\nstacktrace\n}", &Errors{}},

		{"default", "log", "log", &Log{}},
		{"names", "log", "log example.org Sub.Example.ORG", &Log{Names: names(t, "example.org", "sub.example.org")}},
		{"the root is all", "log", "log . {combined}", &Log{Format: CommonLogFormat + ` "{>opcode}"`}},
		{"classes", "log", "log {\nclass error denial\n}", &Log{Classes: []string{"denial", "error"}}},
		{"all classes", "log", "log {\nclass error all\n}", &Log{}},
		{"twice", "log", "log a.test\nlog b.test {common}", &Log{Names: names(t, "a.test"), Next: &Log{Names: names(t, "b.test"), Format: CommonLogFormat}}},
		{"twice, once all", "log", "log a.test\nlog", &Log{Names: names(t, "a.test"), Next: &Log{}}},

		{"default", "loadbalance", "loadbalance", &Loadbalance{}},
		{"round_robin", "loadbalance", "loadbalance round_robin", &Loadbalance{}},
		{"weighted", "loadbalance", "loadbalance weighted a/weights", &Loadbalance{Weights: "a/weights", Reload: 30 * time.Second}},
		{"weighted with options", "loadbalance", "loadbalance weighted /weights {\nreload 0s\nprefer ::ffff/32\n}", &Loadbalance{Weights: "/weights", Prefer: nets("::/32")}},
		{"prefer", "loadbalance", "loadbalance {\nprefer 10.1.2.3/8 fd00::1/8\nprefer 192.0.2.1/32\n}", &Loadbalance{
			Prefer: nets("10.0.0.0/8", "fd00::/8", "192.0.2.1/32"),
		}},
		{"default", "loop", "loop", &Switch{}},

		{"default", "file", "file db", &ZoneFile{Path: "db", Zones: zone, Reload: time.Minute}},
		{"options", "file", "file /db a.test {\nreload 0s\nreload_by_mtime\nupstream\nfallthrough b.a.test\n}", &ZoneFile{
			Path: "/db", Zones: names(t, "a.test"), ByModTime: true, Fallthrough: &Fallthrough{Zones: names(t, "b.a.test")},
		}},
		{"below root", "file", "root ..\nfile db", &ZoneFile{Path: "../db", Zones: zone, Reload: time.Minute}},
		{"two", "file", "file one a.test\nfile two b.test", &ZoneFile{
			Path: "one", Zones: names(t, "a.test"), Reload: time.Minute, Next: &ZoneFile{Path: "two", Zones: names(t, "b.test"), Reload: time.Minute},
		}},
		{"default", "auto", "auto {\ndirectory zones\n}", &Auto{Zones: zone, Directory: "zones", Pattern: `db\.(.*)`, Template: "${1}", Reload: time.Minute}},
		{"options", "auto", "auto a.test {\ndirectory /zones ^(.*)\\.(.*)$ {2}.{1}\nreload 0s\nupstream\nfallthrough b.a.test\n}", &Auto{
			Zones: names(t, "a.test"), Directory: "/zones", Pattern: `^(.*)\.(.*)$`, Template: "${2}.${1}", Fallthrough: &Fallthrough{Zones: names(t, "b.a.test")},
		}},
		{"below root", "auto", "root ..\nauto {\ndirectory zones\n}", &Auto{Zones: zone, Directory: "../zones", Pattern: `db\.(.*)`, Template: "${1}", Reload: time.Minute}},
		{"one server", "secondary", "secondary {\ntransfer from 192.0.2.1\n}", &Secondary{Zones: zone, From: ports("192.0.2.1:53")}},
		{"options", "secondary", "secondary a.test {\ntransfer from 192.0.2.1:5353 [2001:db8::1]:5353\ntransfer from 2001:db8::2 [2001:db8::3]\nfallthrough b.a.test\n}", &Secondary{
			Zones: names(t, "a.test"), From: ports("192.0.2.1:5353", "[2001:db8::1]:5353", "[2001:db8::2]:53", "[2001:db8::3]:53"), Fallthrough: &Fallthrough{Zones: names(t, "b.a.test")},
		}},
		{"two", "secondary", "secondary a.test {\ntransfer from 192.0.2.1\n}\nsecondary b.test {\ntransfer from 192.0.2.2\n}", &Secondary{
			Zones: names(t, "a.test"), From: ports("192.0.2.1:53"), Next: &Secondary{Zones: names(t, "b.test"), From: ports("192.0.2.2:53")},
		}},
		{"one", "transfer", "transfer {\nto 192.0.2.1\n}", &Transfer{Zones: zone, To: ports("192.0.2.1:53")}},
		{"all", "transfer", "transfer a.test {\nto * 192.0.2.1:54 [::1]:55\nto ::1 192.0.2.1:54\nsource ::2\n}\ntransfer b.test {\nto *\n}", &Transfer{
			Zones: names(t, "a.test"), Any: true, To: ports("192.0.2.1:54", "[::1]:55", "[::1]:53"), Source: netip.MustParseAddr("::2"),
			Next: &Transfer{Zones: names(t, "b.test"), Any: true},
		}},
		{"default", "hosts", "hosts", hosts(func(*Hosts) {})},
		{"file and zones", "hosts", "hosts /nonexistent/hosts a.test 192.0.2.0/24", hosts(func(h *Hosts) {
			h.File, h.Zones = "/nonexistent/hosts", names(t, "a.test", "2.0.192.in-addr.arpa")
		})},
		{"options", "hosts", "hosts {\n192.0.2.1 a.test b.test\nttl 60\nreload 0s\nno_reverse\nfallthrough a.test\n::1 c.test\n}", hosts(func(h *Hosts) {
			h.Inline = []string{"192.0.2.1 a.test b.test", "::1 c.test"}
			h.TTL, h.Reload, h.NoReverse, h.Fallthrough = 60, 0, true, &Fallthrough{Zones: names(t, "a.test")}
		})},
		{"fallthrough of all", "hosts", "hosts {\nfallthrough\n}", hosts(func(h *Hosts) { h.Fallthrough = &Fallthrough{} })},

		{"default", "kubernetes", "kubernetes", kubernetes(func(*Kubernetes) {})},
		{"zones", "kubernetes", "kubernetes cluster.local 10.96.0.0/11 2001:db8::/47", kubernetes(func(k *Kubernetes) {
			k.Zones = names(t, "cluster.local")
			for i := 96; i < 128; i++ {
				k.Zones = append(k.Zones, reverseZones(prefix(t, "10.0.0.0/16", i))...)
			}
			k.Zones = append(k.Zones, names(t, "0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", "1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa")...)
		})},
		{"api server", "kubernetes", "kubernetes {\nendpoint https://192.0.2.1:6443\ntls a b c\nnamespaces x y\nnamespaces z\nlabels app in (a, b)\n}", kubernetes(func(k *Kubernetes) {
			k.Endpoint, k.TLS = "https://192.0.2.1:6443", &TLS{Cert: "a", Key: "b", CA: "c"}
			k.Namespaces, k.Labels = []string{"x", "y", "z"}, "app in (a, b)"
		})},
		{"kubeconfig goes first", "kubernetes", "kubernetes {\nendpoint http://x\nkubeconfig /f ctx\n}", kubernetes(func(k *Kubernetes) {
			k.Kubeconfig, k.Context = "/f", "ctx"
		})},
		{"options", "kubernetes", "kubernetes {\npods disabled\nttl 0\nendpoint_pod_names\nnoendpoints\nignore empty_service\nstartup_timeout 1s\nfallthrough\n}", kubernetes(func(k *Kubernetes) {
			k.TTL, k.EndpointPodNames, k.NoEndpoints, k.IgnoreEmptyService = 0, true, true, true
			k.StartupTimeout, k.Fallthrough = time.Second, &Fallthrough{}
		})},
		{"api limits", "kubernetes", "kubernetes {\napiserver_qps 2.5\napiserver_burst 7\napiserver_max_inflight 3\n}", kubernetes(func(k *Kubernetes) {
			k.QPS, k.Burst = 2.5, 7
		})},
		{"manifests", "kubernetes", "kubernetes {\nmanifests " + manifests + " " + manifests + "/*.yaml\npods insecure\n}", kubernetes(func(k *Kubernetes) {
			k.Manifests, k.Pods = []string{manifests, manifests + "/*.yaml"}, PodsInsecure
		})},

		{"verified pods", "kubernetes", "kubernetes {\npods verified\nnamespace_labels team in (a, b)\n}", kubernetes(func(k *Kubernetes) {
			k.Pods, k.NamespaceLabels = PodsVerified, "team in (a, b)"
		})},
		{"multicluster", "kubernetes", "kubernetes a.test b.test c.test {\nmulticluster B.test.\nmulticluster c.test b.test\nzonal\n}", kubernetes(func(k *Kubernetes) {
			k.Zones, k.Multicluster, k.Zonal = names(t, "a.test", "b.test", "c.test"), names(t, "b.test", "c.test"), true
		})},
		{"multicluster in the block's zone", "kubernetes", "kubernetes {\nmulticluster example.org\n}", kubernetes(func(k *Kubernetes) {
			k.Multicluster = zone
		})},
		{"scope node", "kubernetes", "kubernetes {\nscope node\nscope_idle 1m\nscope_max 1\ntopology off\n}", kubernetes(func(k *Kubernetes) {
			k.ScopeIdle, k.ScopeMax, k.Topology = time.Minute, 1, TopologyOff
		})},
		{"scope cluster", "kubernetes", "kubernetes {\nscope cluster\nscope_idle 24h\nscope_max 1000\nendpoints all\ntopology order\n}", kubernetes(func(k *Kubernetes) {
			k.Scope, k.ScopeIdle, k.ScopeMax, k.AllEndpoints, k.Topology = ScopeCluster, 24*time.Hour, 1000, true, TopologyOrder
		})},
		{"scope without endpoints", "kubernetes", "kubernetes {\nscope node\nnoendpoints\ntopology hints\n}", kubernetes(func(k *Kubernetes) { k.NoEndpoints = true })},
		{"save", "kubernetes", "kubernetes {\nsave " + manifests + "//view\n}", kubernetes(func(k *Kubernetes) { k.Save = manifests + "/view" })},
		{"save over a file", "kubernetes", "kubernetes {\nsave " + resolv + "\n}", kubernetes(func(k *Kubernetes) { k.Save = resolv })},

		{"the machine's search domains", "autopath", "kubernetes\nautopath @kubernetes", &Autopath{Zones: zone, Kubernetes: true, Search: zone}},
		{"zones", "autopath", "kubernetes\nautopath a.test 10.0.0.0/8 @kubernetes", &Autopath{
			Zones: names(t, "a.test", "10.in-addr.arpa"), Kubernetes: true, Search: zone,
		}},
		{"file", "autopath", "autopath " + searched, &Autopath{Zones: zone, Search: names(t, "a.test", "b.test")}},
		{"file and zones", "autopath", "autopath b.test " + searched, &Autopath{Zones: names(t, "b.test"), Search: names(t, "a.test", "b.test")}},

		{"default", "k8s_external", "kubernetes\nk8s_external", &K8sExternal{Zones: zone, Apex: "dns", TTL: 5}},
		{"options", "k8s_external", "k8s_external a.test b.test {\napex NS-1\nttl 0\nheadless\nfallthrough b.test\n}\nkubernetes", &K8sExternal{
			Zones: names(t, "a.test", "b.test"), Apex: "ns-1", Headless: true, Fallthrough: &Fallthrough{Zones: names(t, "b.test")},
		}},
		{"most", "k8s_external", "kubernetes\nk8s_external {\nttl 3600\nfallthrough\n}", &K8sExternal{
			Zones: zone, Apex: "dns", TTL: 3600, Fallthrough: &Fallthrough{},
		}},

		{"default", "cache", "cache", cache(func(*Cache) {})},
		{"ttl", "cache", "cache 20", cache(func(c *Cache) { c.Success.MaxTTL, c.Denial.MaxTTL = 20*time.Second, 20*time.Second })},
		{"ttl below the least", "cache", "cache 3 a.test", cache(func(c *Cache) {
			c.Zones = names(t, "a.test")
			c.Success.MaxTTL, c.Success.MinTTL = 3*time.Second, 3*time.Second
			c.Denial.MaxTTL, c.Denial.MinTTL = 3*time.Second, 3*time.Second
		})},
		{"limits", "cache", "cache {\nsuccess 10\ndenial 11 12 0\nservfail 0\n}", cache(func(c *Cache) {
			c.Success.Entries, c.Servfail = 10, 0
			c.Denial = CacheLimits{Entries: 11, MaxTTL: 12 * time.Second}
		})},

		{"default", "forward", "forward . 192.0.2.1", forward(func(*Forward) {})},
		{"rate", "forward", "forward . 192.0.2.1 {\nmax_rate 900\n}", forward(func(f *Forward) { f.MaxRate = MaxRate{PerSecond: 900, Burst: 45} })},
		{"lowest rate", "forward", "forward . 192.0.2.1 {\nmax_rate 1\n}", forward(func(f *Forward) { f.MaxRate = MaxRate{PerSecond: 1, Burst: 1} })},
		{"rate and burst", "forward", "forward . 192.0.2.1 {\nmax_rate 900 100\n}", forward(func(f *Forward) { f.MaxRate = MaxRate{PerSecond: 900, Burst: 100} })},
		{"rate by itself", "forward", "forward . 192.0.2.1 {\nmax_rate auto\n}", forward(func(f *Forward) { f.MaxRate = MaxRate{Auto: true} })},
		{"upstreams", "forward", "forward a.test 192.0.2.1:54 dns://192.0.2.2 dns://[::1]:5 2001:db8::1 [2001:db8::2] fe80::1%eth0 192.0.2.1:54", forward(func(f *Forward) {
			f.From = names(t, "a.test")[0]
			f.To = targets("192.0.2.1:54", "192.0.2.2:53", "[::1]:5", "[2001:db8::1]:53", "[2001:db8::2]:53", "[fe80::1%eth0]:53")
		})},
		{"resolv.conf", "forward", "forward . 192.0.2.9 " + resolv, forward(func(f *Forward) {
			f.To, f.Files = targets("192.0.2.9:53", "[2001:db8::1]:53", "[fe80::1%eth0]:53", "192.0.2.1:53"), []string{resolv}
		})},
		{"reverse zone", "forward", "forward 10.0.0.0/8 192.0.2.1", forward(func(f *Forward) { f.From = names(t, "10.in-addr.arpa")[0] })},
		{"options", "forward", "forward . 192.0.2.1 {\nexcept a.test\nexcept b.test 10.0.0.0/8\nforce_tcp\nprefer_udp\npolicy sequential\nmax_fails 0\nexpire 20s\nread_timeout 1s\nmax_concurrent 9\nfailfast_all_unhealthy_upstreams\n}", forward(func(f *Forward) {
			f.Except, f.ForceTCP, f.PreferUDP, f.Policy = names(t, "a.test", "b.test", "10.in-addr.arpa"), true, true, PolicySequential
			f.MaxFails, f.Expire, f.ReadTimeout, f.MaxConcurrent, f.FailfastAllUnhealthy = 0, 20*time.Second, time.Second, 9, true
		})},
		{"health check", "forward", "forward . 192.0.2.1 {\nhealth_check 1s no_rec domain h.test\n}", forward(func(f *Forward) {
			f.HealthInterval, f.HealthNoRec, f.HealthDomain = time.Second, true, names(t, "h.test")[0]
		})},
		{"policy", "forward", "forward . 192.0.2.1 {\npolicy round_robin\n}", forward(func(f *Forward) { f.Policy = PolicyRoundRobin })},
		{"twice", "forward", "forward a.test 192.0.2.1\nforward . 192.0.2.1", forward(func(f *Forward) {
			f.From = names(t, "a.test")[0]
			next := defaultForward()
			next.To = targets("192.0.2.1:53")
			f.Next = &next
		})},
		{"limits", "quic", "quic {\nmax_streams 1\nmax_connections 2\nworker_pool_size 3\n}", &QUIC{QUICLimits{1, 2, 3}}},
		{"limits", "https3", "https3 {\nmax_streams 0\nmax_connections 2\n}", &HTTP3{QUICLimits{MaxConns: 2}}},
		{"an own address, other port", "forward", "forward . 169.254.20.10:54", forward(func(f *Forward) { f.To = targets("169.254.20.10:54") })},
	} {
		t.Run(tt.directive+"/"+tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, one(t, tt.directive, tt.text), equal, samePrefix()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.text, diff)
			}
		})
	}
}

// TestTable holds that each tagged field is a directive: a pointer whose type
// parses, that an empty one is told from none, and that the table is known.
func TestTable(t *testing.T) {
	want := []string{
		"root", "metadata", "tls", "timeouts", "quic", "https3", "reload", "nsid", "bufsize", "bind", "debug", "ready", "health", "pprof", "prometheus", "errors",
		"log", "dnstap", "trace", "view", "client_limit", "acl", "rpz", "tsig", "any", "local", "dns64", "aaaa", "chaos", "header", "loadbalance", "minimal", "rewrite", "autopath", "template",
		"transfer", "hosts", "k8s_external", "kubernetes", "file", "auto", "secondary", "loop", "cache", "keep", "private_address", "tunnel", "forward", "grpc", "whoami",
		"cancel", "grpc_server", "https", "multisocket", "shed",
	}
	if diff := cmp.Diff(want, Directives()); diff != "" {
		t.Errorf("directives (-want +got):\n%s", diff)
	}
	block := reflect.TypeFor[Block]()
	for _, s := range fields() {
		field := block.Field(s.index)
		if field.Type.Kind() != reflect.Pointer || !field.IsExported() {
			t.Errorf("%s: Block.%s is no exported pointer", s.name, field.Name)
			continue
		}
		if _, ok := reflect.New(field.Type.Elem()).Interface().(directive); !ok {
			t.Errorf("%s: %s has no parse method", s.name, field.Type)
		}
	}
	for _, r := range refused {
		if slices.Contains(want, r.name) || r.remedy == "" {
			t.Errorf("%s is in the table, or is refused without a remedy", r.name)
		}
	}
	if !slices.IsSortedFunc(refused, func(a, b refusal) int { return strings.Compare(a.name, b.name) }) {
		t.Error("the list of refused directives is not sorted")
	}
}
