// These tests use statistics, which is not exported.

package app

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestStatistics: the agent counts queries by zone, for all addresses together, and the
// counters outlive a reload.
func TestStatistics(t *testing.T) {
	p := peer.Ports(t, 2)
	up := fakedns.Start(t, func(q *fakedns.Query) {
		if q.Msg.Question[0].Name == "broken.test." {
			q.Reply(fakedns.Negative(q.Msg, dns.RcodeServerFailure, 0))
			return
		}
		q.Reply(fakedns.Address(q.Msg, 60, "192.0.2.1"))
	})
	manifest := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, manifest, "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\nspec: {clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7]}\n")
	corefile := fmt.Sprintf(`.:%d .:%d {
 bind 127.0.0.1
 cache 300
 forward . %s
}
cluster.local:%[1]d {
 bind 127.0.0.1
 kubernetes cluster.local {
  manifests %[4]s
 }
}
`, p[0], p[1], up.Addr(), manifest)
	l := lookedAt(t, corefile)
	asks := func(port uint16, name, want string) {
		t.Helper()
		agenttest.Expect(t, port, name, want)
	}
	asks(p[0], "a.test.", "192.0.2.1")
	asks(p[1], "a.test.", "192.0.2.1") // each port has a cache of its own
	asks(p[1], "a.test.", "192.0.2.1")
	asks(p[1], "broken.test.", "SERVFAIL")
	asks(p[0], "a.b.svc.cluster.local.", "10.96.0.7")
	want := baseline.Statistics{
		Zones: []baseline.Zone{
			{Name: ".", Queries: 4, ServFail: 1, Lookups: 3, Hits: 1},
			{Name: "cluster.local.", Queries: 1},
		},
		Views: []baseline.View{{Zone: "cluster.local.", Objects: 2, Synced: true}},
	}
	check := func(got baseline.Statistics) {
		t.Helper()
		if got.Interval <= 0 {
			t.Errorf("the interval is %s", got.Interval)
		}
		got.Interval = 0
		got.Sort()
		for i, z := range got.Zones {
			if n := z.Duration.Total(); n != z.Queries {
				t.Errorf("%s: %d durations of %d queries", z.Name, n, z.Queries)
			}
			got.Zones[i].Duration = baseline.Histogram{}
		}
		check.Equal(t, want, got, "statistics differ")
	}
	check(l.statistics())
	agenttest.WriteFile(t, l.conf, corefile+fmt.Sprintf("x.test:%d {\n bind 127.0.0.1\n whoami\n}\n", p[0]))
	if !l.look() {
		t.Fatalf("the change is not taken on:\n%s", l.log)
	}
	want.Zones = append(want.Zones, baseline.Zone{Name: "x.test."})
	check(l.statistics())
}

// TestStatisticsBounded: of many zones a sample has those with the most queries.
func TestStatisticsBounded(t *testing.T) {
	p := peer.Ports(t, 1)
	text := ""
	for i := range maxStatisticsZones + 1 {
		text += fmt.Sprintf("z%d.test:%d {\n bind 127.0.0.1\n whoami\n}\n", i, p[0])
	}
	l := lookedAt(t, text)
	busy := fmt.Sprintf("z%d.test.", maxStatisticsZones)
	agenttest.Ask(t, p[0], busy)
	s := l.statistics()
	if len(s.Zones) != maxStatisticsZones || !s.More || s.Zones[0].Name != busy {
		t.Errorf("%d zones, more %t, the first is %s; want %d, true, %s", len(s.Zones), s.More, s.Zones[0].Name, maxStatisticsZones, busy)
	}
}

// TestZoneGroup: zones with the same name on different transports or with different views
// are not the same.
func TestZoneGroup(t *testing.T) {
	got := []string{
		zoneGroup(config.PlainDNS, noView), zoneGroup(config.PlainDNS, "a"),
		zoneGroup(config.DNSOverTLS, noView), zoneGroup(config.DNSOverTLS, "a"),
	}
	if want := []string{"", "in view a", "over tls", "over tls in view a"}; !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}
}

// TestSampleStatistics: the agent takes a sample when it starts, so that its statistics are
// about its last minutes.
func TestSampleStatistics(t *testing.T) {
	p := peer.Ports(t, 1)
	running := new(agent)
	run := startChanged(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n whoami\n}\n", p[0]), func(a *agent) { running = a })
	run.Await("a sample", func() bool {
		agenttest.Ask(t, p[0], "a.test.")
		recent, all := running.recentStatistics(), running.statistics()
		return recent.Interval < all.Interval-time.Millisecond && len(recent.Zones) == 1 && recent.Zones[0].Queries > 0
	})
}
