package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestSuspicious: what is valid and probably a mistake is named with its line.
func TestSuspicious(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("169.254.20.10")}
	for _, tt := range []struct {
		name, text string
		local      []netip.Addr
		want       []string // the beginnings of the texts
	}{
		{"nothing", ". {\nbind 169.254.20.10\ncache 30\nforward . 192.0.2.1\n}\n", local, nil},
		{"duration", ". {\ncache 30s\n}\n", nil, []string{
			`Corefile:2: cache: "30s" is read as a zone; the TTL is a number of seconds before the zones, such as ` + "`cache 30`",
		}},
		{"duration elsewhere", ". {\nlog 5m\n}\n", nil, []string{`Corefile:2: log: "5m" is read as a zone, not as a duration`}},
		{"number", ". {\ncache . 30\n}\n", nil, []string{`Corefile:2: cache: "30" is read as a zone, and no domain ends in a number`}},
		{"part of an address", ". {\nkubernetes cluster.local 10.96\n}\n", nil, []string{`Corefile:2: kubernetes: "10.96" is read as a zone, and no domain`}},
		{"port without a colon", "5300 {\nwhoami\n}\n", nil, []string{`Corefile:1: "5300" is read as a zone; write a port after a colon: ` + "`.:5300`"}},
		{"port", "example.org:5300 {\nwhoami\n}\n", nil, nil},
		{"wildcard", "*.example.org {\nwhoami\n}\n", nil, []string{`Corefile:1: "*.example.org": there are no wildcards`}},
		{"log class", ". {\nlog denial\n}\n", nil, []string{`Corefile:2: log: "denial" is read as a zone; classes are written in braces`}},
		{"option as an argument", ". {\nforward . 192.0.2.1 force_tcp\n}\n", nil, []string{`Corefile:2: forward: "force_tcp" is read as an argument of forward; options are written in braces`}},
		{"zone twice", "example.org example.org:53 {\ncache a.example.org a.example.org\n}\n", nil, []string{
			`Corefile:1: the zone "example.org:53" is named twice`, `Corefile:2: cache: the zone "a.example.org" is named twice`,
		}},
		{"upstream twice", ". {\nforward . 192.0.2.1 192.0.2.1:53\n}\n", nil, []string{`Corefile:2: forward: the upstream 192.0.2.1:53 is named twice`}},
		{"zone outside of the block", "example.org {\ncache example.com\nforward . 192.0.2.1\n}\n", nil, []string{`Corefile:2: cache: the zone "example.com" has no effect: the block serves example.org.`}},
		{"zone outside with rewrite", "example.org {\ncache example.com\nrewrite name suffix example.org example.com\nforward . 192.0.2.1\n}\n", nil, nil},
		{"zones outside of the cluster", "services.example.org {\nkubernetes cluster.local\nk8s_external services.example.org\n}\n", nil, nil},
		{"reverse zones", "cluster.local {\nkubernetes cluster.local in-addr.arpa\n}\n", nil, nil},
		{"hosts without fallthrough", ". {\nhosts {\n192.0.2.1 a.test\n}\nforward . 192.0.2.1\n}\n", nil, []string{"Corefile:2: hosts: without `fallthrough` it answers SERVFAIL"}},
		{"hosts of one zone", ". {\nhosts /etc/hosts a.test {\n192.0.2.1 a.test\n}\nforward . 192.0.2.1\n}\n", nil, nil},
		{"TTLs", ". {\ncache {\nsuccess 100 30 60\ndenial 100 90000\n}\n}\n", nil, []string{
			"Corefile:2: cache: success: the minimum TTL 1m0s is more than the maximum 30s, which counts",
			"Corefile:2: cache: denial: names that do not exist are remembered for up to 25h0m0s",
		}},
		{"forwards in the wrong order", ". {\nforward . 192.0.2.1\nforward example.org 192.0.2.2\n}\n", nil, []string{"Corefile:3: forward: it gets no query: a forward before it takes all names in .; write this one first"}},
		{"forwards with except", ". {\nforward . 192.0.2.1 {\nexcept example.org\n}\nforward example.org 192.0.2.2\n}\n", nil, nil},
		{"logs in the wrong order", ". {\nlog\nlog example.org {\nclass denial\n}\n}\n", nil, []string{"Corefile:3: log: it logs nothing: a log before it"}},
		{"bind", ". {\nbind 169.254.20.10 169.254.25.10 127.0.0.1\n}\n", local, []string{"Corefile:2: bind: 169.254.25.10 is not an address of --localip (169.254.20.10)"}},
		{"no listener", ".:5300 {\nbind 169.254.20.10\n}\n", local, []string{"Corefile: no server block listens on 169.254.20.10:53, an address of --localip"}},
		{"no root zone", "cluster.local {\nbind 169.254.20.10\n}\n", local, []string{"Corefile: no server block on 169.254.20.10:53 serves the root zone"}},
		{"burst of a client", ". {\nclient_limit 100 5\n}\n", nil, []string{"Corefile:2: client_limit: one look-up of a pod is up to 10 queries at once, and the limit is 5: give a BURST of 10 or more"}},
		{"limit of a client", ". {\nclient_limit 10\n}\n", nil, nil},
		{"view behind all", ". {\nwhoami\n}\n. {\nview v {\nexpr type() == 'A'\n}\n}\n", nil, []string{"Corefile:4: no query for . reaches this block: the one at Corefile:1 takes all of them"}},
		{"view before all", ". {\nview v {\nexpr type() == 'A'\n}\n}\n. {\nwhoami\n}\n", nil, nil},
		{"loop over two blocks", ".:5301 {\nbind 127.0.0.1\nforward . 127.0.0.1:5302\n}\n.:5302 {\nbind 127.0.0.1\nforward . 127.0.0.1:5301\n}\n", nil, []string{
			"Corefile:1: forward: the upstream 127.0.0.1:5302 is this agent, in the block at Corefile:5, which forwards back to this block",
			"Corefile:5: forward: the upstream 127.0.0.1:5301 is this agent, in the block at Corefile:1",
		}},
		{"chain of two blocks", ".:5301 {\nbind 127.0.0.1\nforward . 127.0.0.1:5302\n}\n.:5302 {\nbind 127.0.0.1\nforward . 192.0.2.1\n}\n", nil, nil},
		{"part of the cluster zone", "cluster.local {\nkubernetes cluster.local\n}\nsvc.cluster.local b.test {\nforward . 192.0.2.1\n}\n", nil, []string{
			"Corefile:4: names in svc.cluster.local. are forwarded, although the block at Corefile:1 has `kubernetes`",
		}},
		{"open resolver", ". {\nbind 0.0.0.0\nforward . 192.0.2.1\n}\n", local, []string{"Corefile:1: it listens on all addresses of the node"}},
		{"open with an access list", ". {\nbind ::\nacl {\nallow net 10.0.0.0/8\nblock\n}\nforward . 192.0.2.1\n}\n", local, nil},
		{"own address without a listener", ". {\nbind 169.254.20.10\nforward . 169.254.20.10:5300\n}\n", local, []string{"Corefile:1: forward: the upstream 169.254.20.10:5300 is an address of --localip at which no server block listens"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse(config.Source{Text: []byte(tt.text), Options: config.Options{LocalIPs: tt.local, OffNode: true}})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, s := range c.Suspicious {
				text := s.Error()
				if i < len(tt.want) && strings.HasPrefix(text, tt.want[i]) {
					text = tt.want[i]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestOffNode: files of the node are named and not read.
func TestOffNode(t *testing.T) {
	const text = `tls://. {
    tls /nonexistent/cert.pem /nonexistent/key.pem
    kubernetes cluster.local {
        save /nonexistent/view
    }
    autopath @kubernetes
    forward . /nonexistent/resolv.conf
}
`
	c, err := config.Parse(config.Source{Text: []byte(text), Options: config.Options{OffNode: true, ResolvConf: "/nonexistent/resolv.conf"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/nonexistent/resolv.conf", "/nonexistent/view", "/nonexistent/cert.pem", "/nonexistent/key.pem"}
	if diff := cmp.Diff(want, c.NotRead); diff != "" {
		t.Errorf("not read (-want +got):\n%s", diff)
	}
	if to := c.Blocks[0].Forward.To; len(to) != 1 || to[0].Addr != config.UnknownNameserver {
		t.Errorf("upstreams %v, want %v", to, config.UnknownNameserver)
	}
	if _, err := config.Parse(config.Source{Text: []byte(text)}); err == nil {
		t.Error("the same files are not missed on the node")
	}
}
