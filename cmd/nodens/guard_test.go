package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestGuards: the steps that need no other part are wired to their directives, and
// counted by their names.
func TestGuards(t *testing.T) {
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
		if got := ask(t, dnsPort, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	_, text := get(t, web, "/metrics")
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	for _, want := range []string{
		`coredns_acl_blocked_requests_total{` + srv + `,view="",zone="example.org."} 1`,
		`coredns_acl_allowed_requests_total{` + srv + `,view=""} 2`,
		`coredns_local_localhost_requests_total 1`,
		`coredns_dns64_requests_translated_total{` + srv + `} 0`,
		`coredns_dns_responses_total{plugin="acl",rcode="REFUSED",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="local",rcode="NOERROR",` + srv + `,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="whoami",rcode="NOERROR",` + srv + `,view="",zone="."} 1`,
		`coredns_plugin_enabled{name="dns64",` + srv + `,view="",zone="."} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
