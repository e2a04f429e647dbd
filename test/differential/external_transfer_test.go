package differential

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// Records of the zone of names outside of the cluster that only one of the programs sends, with the reasons.
var (
	externalCoreDNSOnly = map[string]string{
		"_http._tcp.edge-named.plain.out.test. TTL in srv 0 WEIGHT 80 test.": "CoreDNS cuts two labels off a load balancer's host name",
		"edge-both.plain.out.test. TTL in cname host.ext.test.":              "a name with addresses is no alias",
		"edge-named.plain.out.test. TTL in srv 0 100 80 host.ext.test.":      "an alias has no other records",
	}
	externalAgentOnly = map[string]string{
		"_http._tcp.edge-named.plain.out.test. TTL in srv 0 100 80 host.ext.test.": "the load balancer's whole host name",
		"_http._tcp.edge-both.plain.out.test. TTL in srv 0 50 80 host.ext.test.":   "CoreDNS sends the first SRV record of a name",
		"edge-both.plain.out.test. TTL in srv 0 50 80 host.ext.test.":              "CoreDNS sends the first SRV record of a name",
	}
)

// compareExternalTransfer compares transfers of the zone of names outside of the cluster.
func compareExternalTransfer(t *testing.T, coredns, agent netip.AddrPort) {
	q := new(dns.Msg).SetAxfr(externalZone)
	want, got := externalRecords(transferFrom(t, coredns, "tcp", q)), externalRecords(transferFrom(t, agent, "tcp", q))
	if len(want) < 100 {
		t.Errorf("CoreDNS sends %d records only", len(want))
	}
	want, got = withoutListed(t, want, externalCoreDNSOnly), withoutListed(t, got, externalAgentOnly)
	check.Equal(t, want, got, "it differs")
}

// withoutListed returns records without those that only one program sends. It reports those that are missing.
func withoutListed(t *testing.T, records []string, listed map[string]string) []string {
	t.Helper()
	for rr, reason := range listed {
		i := slices.Index(records, rr)
		if i < 0 {
			t.Errorf("%s is no longer sent: %s", rr, reason)
			continue
		}
		records = slices.Delete(records, i, i+1)
	}
	return records
}

// externalRecords leaves out of a transfer what [transferredRecords] does, and:
//   - the TTL of SRV and CNAME records, which CoreDNS takes from the directive kubernetes;
//   - the weight of SRV records that lead to the service itself, all of one weight: CoreDNS gives each that of a record alone, and not
//     the weight that it has in answers.
func externalRecords(list []string) []string {
	list = transferredRecords(list)
	for i, rr := range list {
		f := strings.Fields(rr)
		if len(f) > 4 && (f[3] == "srv" || f[3] == "cname") && (f[1] == "30" || f[1] == strconv.Itoa(externalTTL)) {
			f[1] = "TTL"
		}
		if len(f) == 8 && f[3] == "srv" && (f[0] == f[7] || strings.HasSuffix(f[0], "."+f[7])) {
			f[5] = "WEIGHT"
		}
		list[i] = strings.Join(f, " ")
	}
	slices.Sort(list)
	return slices.Compact(list)
}
