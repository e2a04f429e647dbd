package resolver_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// causeName is what the tests of causes ask for.
const causeName = "web.shop.svc.cluster.local."

// sequentialPool returns a pool that asks the servers in their order, and takes so long at most.
func sequentialPool(t *testing.T, deadline time.Duration, to ...netip.AddrPort) []*upstream.Pool {
	t.Helper()
	cfg := &config.Forward{
		From: wire.Root, Policy: config.PolicySequential, MaxFails: 2, Expire: 10 * time.Second,
		ReadTimeout: 10 * time.Second, HealthInterval: time.Second, HealthDomain: wire.Root,
	}
	for _, addr := range to {
		cfg.To = append(cfg.To, config.Target{Addr: addr})
	}
	p := upstream.New(cfg, upstream.Options{Deadline: deadline})
	t.Cleanup(func() { _ = p.Close() })
	return []*upstream.Pool{p}
}

// causeZones are zones in which a query for causeName has a cause.
var causeZones = map[string]func(t *testing.T) *resolver.Zone{
	"hosts": func(t *testing.T) *resolver.Zone {
		return &resolver.Zone{Hosts: resolvertest.Hosts(t, true, "192.0.2.9 "+strings.TrimSuffix(causeName, "."))}
	},
	"nothing": func(*testing.T) *resolver.Zone { return &resolver.Zone{} },
	"answers": func(t *testing.T) *resolver.Zone {
		return &resolver.Zone{Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1")).Addr())}
	},
	"fails": func(t *testing.T) *resolver.Zone {
		up := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) })
		return &resolver.Zone{Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, up.Addr())}
	},
	"silent": func(t *testing.T) *resolver.Zone {
		return &resolver.Zone{Forward: sequentialPool(t, 200*time.Millisecond, resolvertest.StartBackend(t, func(*dns.Msg) *dns.Msg { return nil }).Addr())}
	},
	"first silent": func(t *testing.T) *resolver.Zone {
		silent := resolvertest.StartBackend(t, func(*dns.Msg) *dns.Msg { return nil })
		second := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1") })
		return &resolver.Zone{Cache: resolvertest.Cache(), Forward: sequentialPool(t, time.Minute, silent.Addr(), second.Addr())}
	},
	"loop": func(t *testing.T) *resolver.Zone {
		_, was, _ := rehearse(t, time.Second, nil, back)
		pools := resolvertest.Pool(t, upstreamAddrPort)
		l, err := resolver.NewLoop(wire.Root, pools, resolver.LoopOptions{Was: was})
		if err != nil || !l.Stopped() {
			t.Fatalf("the loop has not stopped forwarding: %v", err)
		}
		return &resolver.Zone{Forward: pools, Loop: l}
	},
	"view loads": func(t *testing.T) *resolver.Zone {
		p := newPartial(t, "cluster.local")
		p.lacks(causeName, kubernetes.Incomplete)
		p.awaited = func(context.Context) error {
			for began := clock.Now(); clock.Now() == began; {
				continue
			}
			p.lacks(causeName, kubernetes.Answered)
			return nil
		}
		return &resolver.Zone{Cluster: p}
	},
	"view fails": func(t *testing.T) *resolver.Zone {
		p := newPartial(t, "cluster.local")
		p.lacks(causeName, kubernetes.Incomplete)
		return &resolver.Zone{Cluster: p}
	},
	"view not synced": func(t *testing.T) *resolver.Zone {
		p := newPartial(t, "cluster.local")
		p.lacks(causeName, kubernetes.NotSynced)
		return &resolver.Zone{Cluster: p}
	},
}

var upstreamAddrPort = netip.AddrPortFrom(upstreamAddr, 53)

// TestClientCauses: why a query fails, or what it has waited for.
func TestClientCauses(t *testing.T) {
	for zone, want := range map[string]struct {
		cause clients.Cause
		fails bool
	}{
		"hosts":           {clients.LocalCause, false},
		"nothing":         {clients.LocalCause, true},
		"answers":         {clients.UpstreamCause, false},
		"fails":           {clients.UpstreamCause, true},
		"silent":          {clients.TimeoutCause, true},
		"first silent":    {clients.HedgeCause, false},
		"loop":            {clients.LoopCause, true},
		"view loads":      {clients.ViewCause, false},
		"view fails":      {clients.ViewCause, true},
		"view not synced": {clients.ViewCause, true},
	} {
		t.Run(zone, func(t *testing.T) {
			z := causeZones[zone](t)
			z.Name = wire.Root
			d := newDesk(t, z)
			d.rt.Clients = clients.New(clients.Options{Slow: time.Nanosecond})
			d.from("10.0.0.1:53", resolver.UDP).ask(question(causeName, dns.TypeA))
			failing := checkCause(t, d, clients.TopFailing, want.cause, want.fails)
			checkCause(t, d, clients.TopSlow, want.cause, true)
			if zone == "fails" { // now from the cache
				d.ask(question(causeName, dns.TypeA))
				if again := checkCause(t, d, clients.TopFailing, want.cause, true); again != failing+1 {
					t.Errorf("%d failures, and %d with the cached one", failing, again)
				}
			}
		})
	}
}

// checkCause compares the cause of a topic's queries with want, and returns their number.
func checkCause(t *testing.T, d *counterDesk, topic clients.Topic, want clients.Cause, some bool) uint64 {
	t.Helper()
	rows := d.rt.Clients.Names(topic, clients.Minute, 10).Names
	if len(rows) == 0 && !some {
		return 0
	}
	if len(rows) != 1 || !some || rows[0].Cause != want || rows[0].Name != causeName {
		t.Errorf("topic %d: %v, want %s: %t", topic, rows, want, some)
		return 0
	}
	return rows[0].Count
}

// TestClientCauseShed: a query for which there is no place to wait in.
func TestClientCauseShed(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, upstreamAddrPort)})
	d.rt.Clients = clients.New(clients.Options{Slow: time.Hour})
	packet, err := question(causeName, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	d.from("10.0.0.1:53", resolver.UDP).x.Query.Packet = packet
	if _, o := serve(d.rt, &d.x, d.out); o == resolver.Answered {
		t.Fatal("the query does not have to wait")
	}
	d.x.Reject()
	checkCause(t, d, clients.TopFailing, clients.QueueCause, true)
	checkCause(t, d, clients.TopSlow, clients.LocalCause, false)
	total := d.rt.Clients.Report(clients.Pods, clients.Minute).Total
	if total.Limited[clients.ReasonPlaces] != 1 || total.AllLimited() != 1 || total.Shed != 1 {
		t.Errorf("the counts are %+v", total)
	}
}
