// These tests use maxFile, placeholderNames and ServiceEnv, which are not exported.

package config

import (
	"strings"
	"testing"
)

func pillars() Placeholders {
	return Placeholders{
		Path:               "Corefile.base",
		ClusterDNS:         "10.96.0.11",
		ServiceEnv:         "KUBE_DNS_UPSTREAM_SERVICE_HOST",
		UpstreamServers:    []string{"192.0.2.1", "192.0.2.2:54"},
		LocalDNS:           addrs("169.254.20.10", "fd00::a"),
		PrometheusEndpoint: ":9253",
	}
}

func TestRender(t *testing.T) {
	six := pillars()
	six.LocalDNS = addrs("fd00::a")
	for _, tt := range []struct {
		name   string
		values Placeholders
		base   string
		want   string
	}{
		{"none", pillars(), ". {\n  errors # as it is\r\n}", ". {\n  errors # as it is\r\n}"},
		{"nothing", pillars(), "", ""},
		{"cluster", pillars(), "forward . __PILLAR__CLUSTER__DNS__ {", "forward . 10.96.0.11 {"},
		{"upstream", pillars(), "forward . __PILLAR__UPSTREAM__SERVERS__\n", "forward . 192.0.2.1 192.0.2.2:54\n"},
		{"local", pillars(), "bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__\n", "bind 169.254.20.10 fd00::a \n"},
		{"local with a port", pillars(), "health __PILLAR__LOCAL__DNS__:8080\n", "health 169.254.20.10:8080\n"},
		{"local with a port, IPv6", six, "health __PILLAR__LOCAL__DNS__:8080\n", "health [fd00::a]:8080\n"},
		{"prometheus", pillars(), "prometheus __PROMETHEUS__ENDPOINT__\n", "prometheus :9253\n"},
		{"two in a line", pillars(), "__PROMETHEUS__ENDPOINT__ __PILLAR__CLUSTER__DNS__ __PROMETHEUS__ENDPOINT__", ":9253 10.96.0.11 :9253"},
		{"comment", Placeholders{}, "errors # __PILLAR__CLUSTER__DNS__ __PILLAR__X__\n", "errors # __PILLAR__CLUSTER__DNS__ __PILLAR__X__\n"},
		{"no comment in quotes", pillars(), "\"a # \\\" b\n# c\" __PILLAR__CLUSTER__DNS__\n", "\"a # \\\" b\n# c\" 10.96.0.11\n"},
		{"a quote inside a word is none", Placeholders{}, "a\"b # __PILLAR__X__\n", "a\"b # __PILLAR__X__\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Render([]byte(tt.base), tt.values)
			if err != nil || string(got) != tt.want {
				t.Errorf("%q (%v), want %q", got, err, tt.want)
			}
		})
	}
}

func TestRenderFaults(t *testing.T) {
	allowed := strings.Join(placeholderNames, ", ")
	missing := Placeholders{Path: "Corefile.base", ServiceEnv: "KUBE_DNS_UPSTREAM_SERVICE_HOST"}
	headless := missing
	headless.ClusterDNS = "None"
	for _, tt := range []struct {
		name   string
		values Placeholders
		base   string
		want   string
	}{
		{"no Service", missing, "\nforward . __PILLAR__CLUSTER__DNS__", `Corefile.base:2: __PILLAR__CLUSTER__DNS__ is the value of the environment variable KUBE_DNS_UPSTREAM_SERVICE_HOST, which is not set: create the Service that --upstreamsvc names before this pod, or name another one with --upstreamsvc`},
		{"headless Service", headless, "__PILLAR__CLUSTER__DNS__", `Corefile.base:1: __PILLAR__CLUSTER__DNS__ is the value of the environment variable KUBE_DNS_UPSTREAM_SERVICE_HOST, and "None" is not an IP address: the Service that --upstreamsvc names needs a ClusterIP`},
		{"no local IP", missing, "bind __PILLAR__LOCAL__DNS__", `Corefile.base:1: __PILLAR__LOCAL__DNS__ is the addresses of --localip, which is not set; set it to 169.254.20.10, for example`},
		{"for the installer", pillars(), "__PILLAR__DNS__DOMAIN__:53 {\n}", `Corefile.base:1: __PILLAR__DNS__DOMAIN__ must be replaced by the installer: write the cluster's domain, such as cluster.local; allowed: ` + allowed},
		{"slip", pillars(), "errors\nforward . __PILLAR__UPSTREAM__SERVER__ # x", `Corefile.base:2: unknown placeholder __PILLAR__UPSTREAM__SERVER__: an installer replaces it before the Corefile is used; write its value (did you mean "__PILLAR__UPSTREAM__SERVERS__"?); allowed: ` + allowed},
		{"several", missing, "__PILLAR__LOCAL__DNS__\n__PILLAR__A", "Corefile.base:1: __PILLAR__LOCAL__DNS__ is the addresses of --localip, which is not set; set it to 169.254.20.10, for example\nCorefile.base:2: unknown placeholder __PILLAR__A: an installer replaces it before the Corefile is used; write its value; allowed: " + allowed},
		{"large", pillars(), strings.Repeat("#", maxFile+1), "Corefile.base: the file is larger than 1048576 bytes; a Corefile is not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := Render([]byte(tt.base), tt.values); err == nil || got != nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}

// TestServiceEnv holds the name of the variable to what the kubelet sets.
func TestServiceEnv(t *testing.T) {
	for service, want := range map[string]string{"kube-dns-upstream": "KUBE_DNS_UPSTREAM_SERVICE_HOST", "dns": "DNS_SERVICE_HOST"} {
		if got := ServiceEnv(service); got != want {
			t.Errorf("%s: %s, want %s", service, got, want)
		}
	}
}

// TestPillarsOfOptions holds which setting fills which placeholder.
func TestPillarsOfOptions(t *testing.T) {
	opts := node(t)
	opts.PrometheusAddr = "127.0.0.1:1"
	c, err := Parse(Source{Options: opts, Text: []byte("a.test {\nforward . __PILLAR__CLUSTER__DNS__\nprometheus __PROMETHEUS__ENDPOINT__\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	if b := c.Blocks[0]; b.Forward.To[0] != targets("10.96.0.11:53")[0] || b.Prometheus.Addr != "127.0.0.1:1" {
		t.Errorf("forward %v, prometheus %v", b.Forward.To, b.Prometheus)
	}
	opts.LookupEnv = func(string) (string, bool) { return "", false }
	_, err = Parse(Source{Path: "base", Options: opts, Text: []byte(nodeLocal)})
	if err == nil || !strings.Contains(err.Error(), "base:11: ") || !strings.Contains(err.Error(), "--upstreamsvc") {
		t.Errorf("error %v", err)
	}
}
