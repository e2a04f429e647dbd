// These tests use agent, which is not exported.

package app

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/upstream"
)

// TestLimitedClients: the status has the clients that a limit stops, and an explanation says it of its client.
func TestLimitedClients(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	table := l.builder.clients.counted()
	podAddr, unknown, quiet := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::9"), netip.MustParseAddr("10.1.0.3")
	l.builder.clients.observer(nil)(podAddr, nodePod("a"))
	table.Limit(0, podAddr, clients.ReasonPlaces, 2)
	table.Limit(1, podAddr, clients.ReasonClientLimit, 3)
	table.Limit(0, unknown, clients.ReasonSocket, 7)
	table.Count(0, quiet, clients.Query{})
	a := report.NameClient{Kind: "pod", Namespace: "ns", Pod: "a", WorkloadKind: "Pod", Workload: "a", Address: "10.1.0.1"}
	want := []report.LimitedClient{
		{NameClient: report.NameClient{Kind: "unknown", Address: "fd00::9"}, Limited: 7, Reasons: map[string]uint64{"socket": 7}},
		{NameClient: a, Limited: 5, Reasons: map[string]uint64{"client_limit": 3, "places": 2}},
	}
	f := l.status().FairShares
	if diff := cmp.Diff(want, f.Limited); diff != "" || f.MoreLimited != 0 || f.Seconds <= 0 {
		t.Errorf("%d more in %v s (-want +got):\n%s", f.MoreLimited, f.Seconds, diff)
	}
	for addr, want := range map[netip.Addr]map[string]uint64{
		podAddr: {"client_limit": 3, "places": 2}, unknown: {"socket": 7}, quiet: {}, netip.MustParseAddr("10.1.0.4"): {},
	} {
		reasons, seconds := l.limitedNow(addr)
		if diff := cmp.Diff(want, reasons); diff != "" || (seconds > 0) != (len(want) > 0) {
			t.Errorf("%v: in %v s (-want +got):\n%s", addr, seconds, diff)
		}
	}
	for i := range 20 {
		table.Limit(0, netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), clients.ReasonBudget, 1)
	}
	if f := l.status().FairShares; len(f.Limited) != maxShownLimited || f.MoreLimited != 22-maxShownLimited || f.Limited[0].Limited != 7 {
		t.Errorf("of 22 clients there are %d, and %d more: %+v", len(f.Limited), f.MoreLimited, f.Limited)
	}
}

// TestLimitedClientsOff: an agent that does not count clients has none that are limited.
func TestLimitedClientsOff(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]), func(o *options.Agent) { o.ClientMetrics = options.ClientMetricsOff })
	reasons, seconds := l.limitedNow(netip.MustParseAddr("10.1.0.1"))
	if f := l.status().FairShares; f.Limited == nil || len(f.Limited) > 0 || f.Seconds != 0 || reasons == nil || len(reasons) > 0 || seconds != 0 {
		t.Errorf("%+v, %v in %v s", f, reasons, seconds)
	}
}

// TestNewBudget: a budget says which clients wait for it.
func TestNewBudget(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	l.builder.clients.observer(nil)(netip.MustParseAddr("10.1.0.1"), nodePod("a"))
	want := &report.Budget{
		LimitPerSecond: 900, Auto: true, UsedShare: 0.5, Waiting: 4, Waited: 30, Expired: 2, GivenUp: 1,
		Clients: []report.WaitingClient{
			{NameClient: report.NameClient{Kind: "pod", Namespace: "ns", Pod: "a", WorkloadKind: "Pod", Workload: "a", Address: "10.1.0.1"}, Waiting: 3},
			{NameClient: report.NameClient{Kind: "unknown", Address: "10.1.0.2"}, Waiting: 1},
		},
	}
	got := l.newBudget(&upstream.BudgetStats{Limit: 900, Auto: true, Used: 0.5, Waiting: 4, Waited: 30, Expired: 2, GivenUp: 1, Clients: []upstream.BudgetClient{
		{Addr: netip.MustParseAddr("10.1.0.1"), Waiting: 3}, {Addr: netip.MustParseAddr("10.1.0.2"), Waiting: 1},
	}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if b := l.newBudget(nil); b != nil {
		t.Errorf("no budget is %+v", b)
	}
}

// TestWaitingClients: the status says who loses a place to wait in first.
func TestWaitingClients(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	check.NoError(t, err)
	defer silent.Close()
	socket, p := filepath.Join(t.TempDir(), "a.sock"), peer.Ports(t, 1)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . %v\n}\n", p[0], silent.LocalAddr()), func(o *options.Agent) { o.AdminSocket = socket })
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", p[0]))
	check.NoError(t, err)
	defer conn.Close()
	ask := func(name string) {
		packed, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err == nil {
			_, err = conn.Write(packed)
		}
		check.NoError(t, err)
	}
	if list := statusOf(t, socket).FairShares.Waiting; list == nil || len(list) > 0 {
		t.Errorf("nobody waits, but %v", list)
	}
	n := 0
	poll.Until(t, "a client with two waiting queries", func() bool {
		n++
		ask(fmt.Sprintf("a%d.test.", n))
		list := statusOf(t, socket).FairShares.Waiting
		return len(list) == 1 && list[0].Waiting > 1 && list[0].Label() == "(host)" && list[0].Address == "127.0.0.1"
	})
}

// TestBudgetsOfAgent: the status has the budget of an upstream once, and each forward directive has it.
func TestBudgetsOfAgent(t *testing.T) {
	p := peer.Ports(t, 2)
	socket := filepath.Join(t.TempDir(), "a.sock")
	forward := func(zone, rate string) string {
		return fmt.Sprintf("%s:%d {\n bind 127.0.0.1\n forward . 127.0.0.1:%d {\n  max_fails 0\n  %s\n }\n}\n", zone, p[0], p[1], rate)
	}
	startAgent(t, forward("a.test", "max_rate 900 30")+forward("b.test", "max_rate 500"), func(o *options.Agent) { o.AdminSocket = socket })
	budget := report.Budget{LimitPerSecond: 500, Clients: []report.WaitingClient{}}
	want := []report.UpstreamBudget{{To: fmt.Sprintf("127.0.0.1:%d", p[1]), Budget: budget}}
	if diff := cmp.Diff(want, statusOf(t, socket).FairShares.Budgets); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	u := shown[report.Upstreams](t, socket, "/upstreams")
	if len(u.Forwards) != 2 {
		t.Fatalf("/upstreams: %+v", u)
	}
	for _, f := range u.Forwards {
		if diff := cmp.Diff(&budget, f.Upstreams[0].Budget); diff != "" || !slices.Contains(f.Directives, "forward") || f.ServeStale {
			t.Errorf("%v, directives %v (-want +got):\n%s", f.Zones, f.Directives, diff)
		}
	}
}
