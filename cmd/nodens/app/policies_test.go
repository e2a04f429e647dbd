package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestPolicies: the steps that need no other part are wired to their directives, and
// counted by their names.
func TestPolicies(t *testing.T) {
	p := peer.Ports(t, 2)
	dnsPort, web := p[0], p[1]
	startAgent(t, fmt.Sprintf(`.:%d {
    bind 127.0.0.1
    prometheus 127.0.0.1:%d
    local
    any
    minimal
    nsid
    acl example.org {
        block net 127.0.0.0/8
    }
    acl {
        filter type MX
        drop type SRV
    }
    dns64 {
        allow_ipv4
    }
    hosts {
        192.0.2.1 www.example.com www.example.org
        fallthrough
    }
    whoami
}
`, dnsPort, web))
	for name, want := range map[string]string{
		"www.example.com.": "192.0.2.1", "www.example.org.": "REFUSED", "localhost.example.net.": "127.0.0.1", "who.am.i.": "NOERROR",
	} {
		agenttest.Expect(t, dnsPort, name, want)
	}
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	agenttest.ExpectMetrics(t, web,
		`coredns_acl_blocked_requests_total{`+srv+`,view="",zone="example.org."} 1`,
		`coredns_acl_allowed_requests_total{`+srv+`,view=""} 2`,
		`coredns_local_localhost_requests_total 1`,
		`coredns_dns64_requests_translated_total{`+srv+`} 0`,
		`coredns_dns_responses_total{plugin="acl",rcode="REFUSED",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="local",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="whoami",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_plugin_enabled{name="dns64",`+srv+`,view="",zone="."} 1`,
	)
}

// TestViews: blocks of one zone with views of their own are told apart, in answers, in
// metrics, and when a changed Corefile is taken on.
func TestViews(t *testing.T) {
	t.Parallel() // it waits for the agent to look at files
	p := peer.Ports(t, 2)
	dnsPort, web := p[0], p[1]
	block := func(view, addr string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n cache\n %s\n hosts {\n %s www.test\n fallthrough\n }\n whoami\n}\n", dnsPort, web, view, addr)
	}
	one := "view one {\n expr incidr(client_ip(), '127.0.0.0/8') && name() == 'www.test.'\n }"
	r := startAgent(t, block(one, "192.0.2.1")+block("view two {\n expr name() == 'x.test.'\n }", "192.0.2.2")+block("", "192.0.2.3")+fmt.Sprintf("other.test:%d {\n bind 127.0.0.1\n reload 2s 0s\n}\n", dnsPort))
	agenttest.Expect(t, dnsPort, "www.test.", "192.0.2.1")
	agenttest.Ask(t, dnsPort, "x.test.")
	agenttest.Ask(t, dnsPort, "y.test.")
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	agenttest.ExpectMetrics(t, web,
		`coredns_dns_responses_total{plugin="hosts",rcode="NOERROR",`+srv+`,view="one",zone="."} 1`,
		`coredns_dns_responses_total{plugin="whoami",rcode="NOERROR",`+srv+`,view="two",zone="."} 1`,
		`coredns_dns_responses_total{plugin="whoami",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_cache_requests_total{`+srv+`,view="two",zones="."} 1`,
		`coredns_plugin_enabled{name="view",`+srv+`,view="one",zone="."} 1`,
	)
	agenttest.WriteFile(t, r.Conf, block(one, "192.0.2.4")+block("", "192.0.2.3")+fmt.Sprintf("other.test:%d {\n bind 127.0.0.1\n reload 2s 0s\n}\n", dnsPort))
	r.Await("the changed view to be served", func() bool { return agenttest.Ask(t, dnsPort, "www.test.") == "192.0.2.4" })
	_, text := agenttest.Get(t, web, "/metrics")
	if strings.Contains(text, `view="two"`) || !strings.Contains(text, srv+`,view="one"`) {
		t.Errorf("the metrics after it:\n%s", text)
	}
}
