package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestDiagnose: the status begins with what matters most.
func TestDiagnose(t *testing.T) {
	flood := &report.Clients{Clients: []report.Client{{Kind: "pod", Namespace: "search", Workload: "indexer", Share: 0.98, QueriesPerSecond: 900}}}
	random := &report.Names{}
	for i := range 50 {
		random.Names = append(random.Names, report.Name{Name: fmt.Sprintf("x%d.flood.example.", i), Queries: 9, Error: 8})
	}
	random.Names = append(random.Names, report.Name{Name: "www.example.org.", Queries: 9})
	for _, c := range []struct {
		name              string
		s                 report.Status
		clients           *report.Clients
		sentence, command string
	}{
		{"well", report.Status{Rates: report.Rates{QueriesPerSecond: 3}}, &report.Clients{}, "No problem is known; 3.0 queries/s, 0.0% SERVFAIL.", "nodens top"},
		{"flood", report.Status{}, flood, "98% of the queries come from search/indexer, for names below flood.example.", "nodens top --by domain"},
		{"upstreams", report.Status{Upstreams: report.Counts{Total: 2, Down: 1}}, flood, "1 of 2 upstreams are down.", "nodens top --by upstream"},
		{
			"API server", report.Status{View: &report.View{Error: "forbidden", Fix: "add a rule to the ClusterRole", Gaps: report.Gaps{Failing: []string{"services"}}}}, flood,
			"The API server does not serve the agent (services): add a rule to the ClusterRole.", "nodens status -o wide",
		},
		{
			"Corefile", report.Status{Config: report.Config{Path: "/etc/Corefile", Rejected: true, LastRejected: &report.Rejection{}}, Problems: []report.Problem{{Text: "it"}}}, flood,
			"The configuration in the files is invalid, and the one before stays in force.", "nodens check --conf /etc/Corefile",
		},
		{"problem", report.Status{Problems: []report.Problem{{Text: "not ready: why", Remedy: "wait"}}}, flood, "Not ready: why; wait.", "nodens status -o wide"},
	} {
		names := &report.Names{}
		if c.name == "flood" {
			names = random
		}
		if sentence, command := diagnose(&c.s, c.clients, names); sentence != c.sentence || command != c.command {
			t.Errorf("%s: %q, %q", c.name, sentence, command)
		}
	}
}

// TestWithFallback: without a status, the error says where the node's queries go.
func TestWithFallback(t *testing.T) {
	other := errors.New("other")
	for err, want := range map[error]string{
		report.ErrNoAgent: "the cluster DNS serves the node if fail-open was active", report.ErrHangs: "the node's queries still go to it", other: "",
	} {
		if got := withFallback(t.Context(), err, nil); !errors.Is(got, err) || !strings.Contains(got.Error(), want) || want == "" && got.Error() != "other" {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// TestWithFallbackAsks: the error says whether queries to the agent's addresses are answered, with whatever rcode.
func TestWithFallbackAsks(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	check.NoError(t, err)
	defer silent.Close()
	reply := func(rcode int) netip.AddrPort {
		return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, rcode) })).Addr()
	}
	const answered, not = "queries of this node to 127.0.0.1 are answered", "queries of this node to 127.0.0.1 are not answered: pods that ask there have no DNS"
	for name, c := range map[string]struct {
		addr netip.AddrPort
		want string
	}{
		"NXDOMAIN": {reply(dns.RcodeNameError), answered},
		"SERVFAIL": {reply(dns.RcodeServerFailure), answered},
		"silence":  {netip.MustParseAddrPort(silent.LocalAddr().String()), not},
	} {
		if got := withFallback(t.Context(), report.ErrNoAgent, []netip.AddrPort{c.addr}); !strings.HasSuffix(got.Error(), c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestFit: a narrow terminal loses the least decisive columns, and the middle of long names.
func TestFit(t *testing.T) {
	c := report.ClusterClients{By: "pod", Clients: []report.ClusterClient{{Client: report.Client{Kind: "pod", Namespace: "payments", Pod: "checkout-api-7d9c5b8f6c-x2x9z", TopName: &report.TopName{Name: "a-long-name.of-a-service.example.org."}}}}}
	for width, want := range map[int]struct {
		gone int
		pod  string
	}{0: {0, "payments/checkout-api-7d9c5b8f6c-x2x9z"}, 300: {0, "payments/checkout-api-7d9c5b8f6c-x2x9z"}, 80: {5, "payments…6c-x2x9z"}} {
		f := &topFlags{output: new(cli.Output)}
		table := cells(clientColumns(f, &c), c.Clients)
		gone := fit(table, width)
		if width > 0 && tableWidth(table, width) > width {
			t.Errorf("width %d: %v takes %d", width, table, tableWidth(table, width))
		}
		if gone != want.gone || table[1][0] != want.pod || len(table[0]) != len(table[1]) {
			t.Errorf("width %d: %d columns gone, %q", width, gone, table)
		}
	}
	if got := cutMiddle("abcdef", 5); got != "ab…ef" || strings.Count(cutMiddle("äöüäöü", 4), "…") != 1 {
		t.Errorf("cut to %q", got)
	}
}
