// Internal: uses the fixtures of internal tests.

package kubernetes

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Every reply is a valid message with complete names, and every denial has an SOA.
func FuzzAnswer(f *testing.F) {
	for _, c := range hot {
		f.Add(packQuery(f, c.qname, c.qtype))
	}
	for _, name := range []string{"cluster.local", "_http._tcp.web.default.svc.cluster.local", "10.0.96.10.in-addr.arpa", "--.default.pod.cluster.local",
		"web.default.example.org", "_http._tcp.named.default.example.org", "ns1.dns.example.org", "3.2.0.192.in-addr.arpa",
		"db-0.east.db.default.svc.clusterset.local", "_pg._tcp.db.default.svc.clusterset.local"} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeNS, dns.TypeSOA, dns.TypeANY, dns.TypeTXT, dns.TypeCNAME} {
			f.Add(packQuery(f, name, qtype))
		}
	}
	_, hot := hotZone(f)
	all := []answers{
		hot, openMulticluster(f, nil),
		openOutside(f, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true }),
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		var q wire.Query
		var r wire.Reply
		if q.Parse(packet) != wire.Serve {
			return
		}
		for _, z := range all {
			r.Start(nil, &q)
			outcome, target := z.Answer(&q, &r, nil)
			checkOutcome(t, outcome, target, &r)
			m := new(dns.Msg)
			if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
				t.Fatalf("%v", err)
			}
			if outcome == Answered && len(m.Answer) == 0 && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA) {
				t.Fatalf("a denial without a SOA: %v", m)
			}
		}
	})
}

func checkOutcome(t *testing.T, outcome Outcome, target wire.Name, r *wire.Reply) {
	t.Helper()
	if (outcome == Alias) != (target != "") {
		t.Fatalf("outcome %d with the target %q", outcome, target)
	}
	wrote := r.Count(wire.Answer) + r.Count(wire.Authority) + r.Count(wire.Additional)
	if (outcome == NotMine || outcome == NotSynced || outcome == Incomplete) && wrote > 0 {
		t.Fatalf("outcome %d, and %d records are written", outcome, wrote)
	}
}
