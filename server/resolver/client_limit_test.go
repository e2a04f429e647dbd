package resolver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// limitedDesk is a desk with a zone whose clients may ask burst queries, and hardly more in a test.
func limitedDesk(t *testing.T, burst int, action config.LimitAction) (*counterDesk, *resolver.Zone) {
	t.Helper()
	backend := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{
		Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, backend.Addr()), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"),
		Limit: &resolver.ClientLimit{Limiter: ratelimit.New(ratelimit.Options{Rate: 1, Burst: burst}), Action: action},
	}
	d := newDesk(t, z, &resolver.Zone{Name: resolvertest.ZoneName(t, "free.test"), Whoami: true})
	d.rt.Clients = clients.New(clients.Options{})
	return d, z
}

// useUp uses up the limit of client for an hour.
func useUp(z *resolver.Zone, client string) {
	for at := clock.Now() + time.Hour; z.Limit.Allow(netip.MustParseAddr(client), at); {
		continue
	}
}

// TestLimitCountsOnce: a query that has to wait, and is resolved twice, counts once for the limit, as one from the
// cache does, and so do queries with subqueries.
func TestLimitCountsOnce(t *testing.T) {
	const burst = 3
	d, z := limitedDesk(t, burst, config.LimitRefuse)
	d.from("10.0.0.1:53", resolver.UDP)
	d.x.Arrival = time.Minute // for all of them
	var got []string
	for _, name := range []string{"a.test.", "a.test.", "by.hand.", "b.test.", "x.free.test."} {
		q := question(name, dns.TypeA)
		packet, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		d.serve(packet)
		got = append(got, d.x.Source())
	}
	want := []string{"", "cache", "hosts", "client_limit", "whoami"} // the first was answered by a copy
	if diff := cmp.Diff(want[1:], got[1:]); diff != "" {
		t.Error(diff)
	}
	if n := z.Stats; n == nil {
		t.Error("no counters")
	}
	total := d.rt.Clients.Report(clients.Pods, clients.Minute).Total
	if total.Queries() != burst+1 || total.Limited[clients.ReasonClientLimit] != 1 || total.AllLimited() != 1 {
		t.Errorf("the counts are %+v", total)
	}
}

// TestLimitExplained: an explanation says whether the client is over the limit, and does not count.
func TestLimitExplained(t *testing.T) {
	for action, want := range map[config.LimitAction]string{
		config.LimitRefuse:   "the client exceeds the limit of 1 queries/s now: it gets REFUSED",
		config.LimitTruncate: "the client exceeds the limit of 1 queries/s now: it gets a truncated reply",
		config.LimitDrop:     "the client exceeds the limit of 1 queries/s now: it gets no reply",
	} {
		t.Run(action.String(), func(t *testing.T) {
			d, z := limitedDesk(t, 1, action)
			packet, err := question("by.hand.", dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			client := netip.MustParseAddrPort("10.0.0.1:53")
			explain := func(proto resolver.Proto) *resolver.Explanation {
				t.Helper()
				e, verdict := d.rt.Explain(packet, client, proto)
				if verdict != wire.Serve {
					t.Fatalf("the query is %v", verdict)
				}
				return e
			}
			for range 3 {
				if e := explain(resolver.UDP); e.Source != "hosts" || !strings.Contains(stepsText(e), "client_limit passes the client is within the limit of 1 queries/s") {
					t.Errorf("within the limit: %s", stepsText(e))
				}
			}
			useUp(z, "10.0.0.1")
			e := explain(resolver.UDP)
			if e.Source != "client_limit" || !strings.Contains(stepsText(e), want) || (e.Reply == nil) != (action == config.LimitDrop) {
				t.Errorf("over the limit: %s, a reply: %t", stepsText(e), e.Reply != nil)
			}
			passes := action == config.LimitTruncate // only UDP is limited
			if e := explain(resolver.TCP); strings.Contains(stepsText(e), "it gets REFUSED") == passes || e.Reply == nil {
				t.Errorf("over the limit, over TCP: %s", stepsText(e))
			}
			if total := d.rt.Clients.Report(clients.Pods, clients.Minute).Total; total != (clients.Counts{}) {
				t.Errorf("the counts are %+v", total)
			}
		})
	}
}

// TestLimitReasons: a query that fails because of a limit of the agent is counted with it, and others are not.
func TestLimitReasons(t *testing.T) {
	for _, tt := range []struct {
		name string
		shed bool
		err  error
		want string // "" for none
	}{
		{"answered", false, nil, ""},
		{"no place", true, nil, "places"},
		{"in flight", false, upstream.ErrBusy, "in_flight"},
		{"max_concurrent", false, fmt.Errorf("asking: %w", upstream.ErrTooMany), "in_flight"},
		{"max_rate", false, fmt.Errorf("asking: %w", upstream.ErrOverBudget), "budget"},
		{"timeout", false, upstream.ErrTimeout, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if reason, ok := resolver.LimitReason(tt.shed, tt.err); ok {
				got = reason.String()
			}
			if got != tt.want {
				t.Errorf("counted as %q, want %q", got, tt.want)
			}
		})
	}
}
