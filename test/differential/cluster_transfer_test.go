package differential

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// clusterTransferText transfers the zone of the cluster, and the zone of names outside of it.
const clusterTransferText = `.:PORT {
    bind 127.0.0.1
    health 127.0.0.1:HEALTH
    ready 127.0.0.1:READY
    kubernetes cluster.local in-addr.arpa {
        kubeconfig KUBECONFIG
        ttl 30
    }
    k8s_external out.test {
        headless
        ttl 7
    }
    transfer cluster.local in-addr.arpa out.test {
        to *
    }
}
`

// coreDNSOnly are the records that only CoreDNS sends, with the reasons.
var coreDNSOnly = map[string]string{
	"_http._tcp.allports.headless.svc.cluster.local. 30 in srv 0 100 65535 10-244-10-1.allports.headless.svc.cluster.local.": "a port without a number has no SRV record",
	"_http._tcp.double.headless.svc.cluster.local. 30 in srv 0 100 80 10-244-13-1.double.headless.svc.cluster.local.":        "an endpoint in two slices has one weight",
	"_http._tcp.several.headless.svc.cluster.local. 30 in srv 0 100 80 db.several.headless.svc.cluster.local.":               "a hostname in two slices has one weight",
}

// transfer compares the zones of the fixed world that clients get.
func (s *site) transfer(t *testing.T) {
	coredns := s.serve(t, "coredns", clusterTransferText, apiserver.Admin)
	agent := s.serve(t, agentProgram(), clusterTransferText, apiserver.Admin)
	q := new(dns.Msg).SetAxfr(zone)
	want, got := transferredRecords(transferFrom(t, coredns, "tcp", q)), transferredRecords(transferFrom(t, agent, "tcp", q))
	if len(want) < 100 {
		t.Errorf("CoreDNS sends %d records only", len(want))
	}
	check.Equal(t, withoutListed(t, want, coreDNSOnly), got, "it differs")
	const refused = "a reverse zone is not transferred: CoreDNS sends the names of Services, under in-addr.arpa"
	if got := transferFrom(t, agent, "tcp", new(dns.Msg).SetAxfr("in-addr.arpa.")); !slices.Equal(got, []string{"REFUSED"}) {
		t.Errorf("%s; got %q", refused, got)
	}
	t.Run("external", func(t *testing.T) { compareExternalTransfer(t, coredns, agent) })
}

// transferredRecords leaves out of a transfer what differs on purpose: the serial, which is the time of a change that
// each server sees by itself; records that CoreDNS sends twice; and the server's own name and addresses, of which the agent
// has none on loopback.
func transferredRecords(list []string) []string {
	var out []string
	for _, rr := range list {
		fields := strings.Fields(rr)
		switch {
		case len(fields) > 6 && fields[3] == "soa":
			fields[6] = "SERIAL"
		case fields[0] == "ns.dns."+zone, len(fields) > 4 && fields[3] == "ns":
			continue
		}
		out = append(out, strings.Join(fields, " "))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
