package clients_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/server/clients"
)

// TestOwner: whose an address is now, whether it has asked or not.
func TestOwner(t *testing.T) {
	addr, host, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.9")
	pod := clients.Pod{Namespace: "shop", Name: "web-1", UID: "u"}
	table := clients.New(clients.Options{Host: func(a netip.Addr) bool { return a == host }})
	check := func(step string, a netip.Addr, kind clients.Kind, p clients.Pod) {
		t.Helper()
		if k, got := table.Owner(a); k != kind || got != p {
			t.Errorf("%s: %s is %v %+v", step, a, k, got)
		}
	}
	table.SetPod(addr, pod)
	for _, step := range []string{"before the first query", "after it", "after a reading"} {
		check(step, addr, clients.PodClient, pod)
		check(step, netip.AddrFrom16(addr.As16()), clients.PodClient, pod)
		check(step, host, clients.Host, clients.Pod{})
		check(step, netip.AddrFrom16(host.As16()), clients.Host, clients.Pod{})
		check(step, other, clients.Unknown, clients.Pod{})
		if step == "after it" {
			table.Sweep()
			continue
		}
		for _, a := range []netip.Addr{addr, host, other} {
			table.Count(0, a, clients.Query{})
		}
	}
	table.Sweep()
	shop := func(_ clients.Kind, p clients.Pod) bool { return p.Namespace == "shop" }
	if diff := cmp.Diff([]string{"10.0.0.1"}, texts(table.Addrs(shop))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.9"}, texts(table.Addrs(func(k clients.Kind, _ clients.Pod) bool { return k == clients.Unknown }))); diff != "" {
		t.Error(diff)
	}
	table.EndAddr(addr)
	check("after its end", addr, clients.Unknown, clients.Pod{})
	if list := table.Addrs(shop); len(list) > 0 {
		t.Errorf("after its end: %v", list)
	}
	var none *clients.Table
	if k, _ := none.Owner(addr); k != clients.Unknown || none.Addrs(shop) != nil {
		t.Error("a nil table knows addresses")
	}
}

func texts(addrs []netip.Addr) (list []string) {
	for _, a := range addrs {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return list
}
