package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestCheck holds what check says of the parts that answer from the cluster. The
// block's other parts are those of every Corefile.
func TestCheck(t *testing.T) {
	folder := t.TempDir()
	manifests, resolv := filepath.Join(folder, "cluster.yaml"), filepath.Join(folder, "resolv.conf")
	agenttest.WriteFile(t, manifests, "")
	agenttest.WriteFile(t, resolv, "search a.test b.test\n")
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"scope node", "kubernetes cluster.local {\nscope_idle 10m\nscope_max 5\n}", []string{
			"  kubernetes     cluster.local. from the API server of the pod's own cluster",
			"  in view        all services; endpoints of the Services in use on this node, each until 10m0s after its last use; endpoints of all namespaces when those of 6 or more are in use",
		}},
		{"scope cluster", "kubernetes cluster.local {\nscope cluster\n}", []string{
			"  in view        all services and the endpoints of headless ones",
		}},
		{"all endpoints", "kubernetes cluster.local {\nscope cluster\nendpoints all\n}", []string{
			"  in view        all services and all endpoints",
		}},
		{"no endpoints", "kubernetes cluster.local {\nnoendpoints\n}", []string{
			"  in view        services and namespaces, no endpoints",
		}},
		{"manifests", "kubernetes cluster.local {\nmanifests " + manifests + "\n}", []string{
			"  in view        everything in the manifests",
		}},
		{"external names", "kubernetes cluster.local\nk8s_external example.org {\napex ns\n}", []string{
			"  k8s_external   example.org. with name servers below ns",
		}},
		{"guards", "acl example.org {\nallow net 10.0.0.0/8\nblock\n}\ndns64\nwhoami\nview pods {\nexpr do()\nexpr id() > 7\n}", []string{
			"  view           pods takes a query if do(), and id() > 7",
			"  acl            example.org. by 2 policies",
			"  dns64          IPv4 addresses behind 64:ff9b::/96",
			"  whoami         answers all other queries with the client's own address",
		}},
		{"what it tells", "pprof\ndnstap /run/s full\ndnstap listen tcp://:6001\ndnstap tcp://192.0.2.9:6000\ntrace otlp 192.0.2.9", []string{
			"  pprof          http localhost:6053/debug/pprof/",
			"  dnstap         to unix:///run/s",
			"  dnstap         listening on tcp://:6001",
			"  dnstap         to tcp://192.0.2.9:6000",
			"  trace          to http://192.0.2.9:4318/v1/traces",
		}},
		{"no effect", "multisocket 4\nshed\ncancel 1s\nhttps {\nmax_streams 1\n}", []string{
			"  cancel         accepted, no effect, because a query ends after 5 seconds at most",
			"  https          accepted, no effect, because connections and streams are always limited",
			"  multisocket    accepted, no effect, because each address has a socket for each core, or as many as --readers says",
			"  shed           accepted, no effect, because queries beyond what the agent can hold are always shed",
		}},
		{"a view of all", "view pods", []string{"  view           pods takes every query"}},
		{"search path", "autopath cluster.local " + resolv, []string{
			"  autopath       cluster.local. along a.test. b.test.",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conf := filepath.Join(t.TempDir(), "Corefile")
			agenttest.WriteFile(t, conf, ".:5300 {\n"+tt.text+"\n}\n")
			code, out, stderr := outcome(t, "check", "-conf", conf)
			if code != exitOK {
				t.Fatal(stderr)
			}
			lines := strings.Split(out, "\n")
			for _, want := range tt.want {
				if !slices.Contains(lines, want) {
					t.Errorf("no line %q in:\n%s", want, out)
				}
			}
		})
	}
}

func TestSearchPath(t *testing.T) {
	domain, err := wire.ParseName("a.test")
	check.NoError(t, err)
	for want, a := range map[string]*config.Autopath{
		"the pod's own search path":         {Kubernetes: true},
		"the pod's own search path a.test.": {Kubernetes: true, Search: []wire.Name{domain}},
		"a.test.":                           {Search: []wire.Name{domain}},
	} {
		if got := searchPath(a); got != want {
			t.Errorf("%+v: %q, want %q", a, got, want)
		}
	}
}

// TestCheckKernelPath: check says whose answers the kernel may give, and if not, why.
func TestCheckKernelPath(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "Corefile")
	agenttest.WriteFile(t, conf, `a.test:5300 {
    bind 127.0.0.1
    cache
}
b.test:5301 {
    cache
}
c.test:5302 {
    bind 127.0.0.1
    log
    hosts
    cache
}
d.test:5303 {
    bind 127.0.0.1
    whoami
}
e.test:5304 {
    bind 127.0.0.1
    cache
}
f.test:5304 {
    bind 127.0.0.1
    view some
    rewrite name a.f.test b.f.test
    rewrite edns0 local set 0xffee 0x61
}
`)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"-kernel-path=auto"}, "if this node's kernel supports it and Cilium is not installed\n  on each pod's interface after all other programs\n"},
		{[]string{"-kernel-path=on", "-kernel-path-order=first"}, "required: the agent does not start without it\n  on each pod's interface before all other programs\n"},
		{[]string{"-kernel-path=on", "-kernel-path-order=after:x"}, "on each pod's interface after the program x if it is present, else after all others\n"},
		{[]string{"-kernel-path=on", "-kernel-path-order=before:x"}, "on each pod's interface before the program x if it is present, else after all others\n"},
	} {
		code, out, stderr := outcome(t, append([]string{"check", "-conf", conf}, tt.args...)...)
		if code != exitOK {
			t.Fatal(stderr)
		}
		text := out
		if !strings.Contains(text, tt.want) || tt.want == "" && strings.Contains(text, "kernel path") {
			t.Errorf("%q: no %q in:\n%s", tt.args, tt.want, text)
		}
		for _, want := range []string{
			"answers are copied into the kernel", "none, because the block listens on all addresses; name some with bind",
			"none, because of log", "none, because of view", "none, because of view, rewrite", "none, without kubernetes, hosts and cache",
		} {
			if tt.want != "" && strings.Count(text, "  kernel path    "+want+"\n") != 1 {
				t.Errorf("no line %q in:\n%s", want, text)
			}
		}
	}
}

// TestCheckSecure: check says how clients come to each block.
func TestCheckSecure(t *testing.T) {
	folder := t.TempDir()
	cert, key := ca.ForTest(t).ServerFiles(t, folder, "a server", time.Now().Add(time.Hour))
	conf := filepath.Join(folder, "Corefile")
	agenttest.WriteFile(t, conf, ". tls://. https://. {\nbind 192.0.2.1\ntls "+cert+" "+key+"\n}\n")
	code, out, stderr := outcome(t, "check", "-conf", conf)
	if code != exitOK {
		t.Fatal(stderr)
	}
	lines := strings.Split(out, "\n")
	for _, want := range []string{
		"  listens on     udp and tcp 192.0.2.1:53", "  listens on     tls 192.0.2.1:853", "  listens on     https 192.0.2.1:443",
		"  certificate    " + cert,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in:\n%s", want, out)
		}
	}
	check.NoError(t, os.Remove(key))
	if code, _, stderr := outcome(t, "check", "-conf", conf); code != exitError || !strings.Contains(stderr, key) {
		t.Errorf("code %d, error %q, want one that names the missing key", code, stderr)
	}
}

// TestCheckSelectors: a label selector with which the agent does not start is an error of check, too.
func TestCheckSelectors(t *testing.T) {
	for option, valid := range map[string]bool{
		"labels app in (web, api)":       true,
		"labels app in (web, api":        false,
		"namespace_labels !canary,t!=a":  true,
		"namespace_labels team = a = b":  false,
		"namespace_labels team in web":   false,
		"labels example.test/app exists": false,
	} {
		code, _, stderr := checkOutput(t, ". {\nkubernetes cluster.local {\n"+option+"\n}\n}\n", "-")
		name, _, _ := strings.Cut(option, " ")
		if refused := code == exitError && strings.Contains(stderr, ":1: kubernetes: "+name+` "`) && strings.Contains(stderr, "is not a label selector"); refused == valid || (code == exitOK) != valid {
			t.Errorf("%s: code %d, valid %t:\n%s", option, code, valid, stderr)
		}
	}
}
