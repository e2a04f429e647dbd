// These tests use hopHeader, isDefaultRouteChange and kernelNode, which are not exported.

package netsetup

// Inside the package: reading default routes is not exported.

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// addDefaultRoutes gives the namespace interfaces of many kinds, eth0 to eth3 and mac of which
// lead to another namespace.
func addDefaultRoutes(t *testing.T) {
	t.Helper()
	far := newNetns(t)
	sh(t, `ip link set lo up
for i in 0 1 2 3; do
	ip link add eth$i type veth peer name far$i
	ip link set far$i netns `+far.path+`
	ip addr add 10.9.$i.1/24 dev eth$i
	ip addr add fd09:$i::1/64 dev eth$i nodad
	ip link set eth$i up
done
ip link add br0 type bridge
ip link add near0 type veth peer name near1
ip link add shim link eth3 type macvlan mode bridge
ip tuntap add tap0 mode tap
for dev in br0 near0 near1 shim tap0; do ip link set $dev up; done`)
	far.sh(t, fmt.Sprintf(`for i in 0 1 2 3; do ip link set far$i up; done
ip link add mac link far3 type macvlan mode bridge
ip link set mac netns /proc/%d/ns/net`, os.Getpid()))
	sh(t, "ip link set mac up")
}

func TestKernelDefaultInterfaces(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		addDefaultRoutes(t)
		for _, tt := range []struct{ name, script, want string }{
			{"no route", ":", ""},
			{"IPv4", "ip route add default via 10.9.0.2", "eth0 veth false"},
			{"IPv6", "ip -6 route add default via fd09:2::2", "eth2 veth false"},
			{"both families over one", "ip route add default via 10.9.0.2; ip -6 route add default via fd09:0::2", "eth0 veth false"},
			{"each over its own", "ip route add default via 10.9.0.2; ip -6 route add default via fd09:1::2", "eth0 veth false, eth1 veth false"},
			{"metrics", "ip route add default via 10.9.1.2 metric 500; ip route add default via 10.9.0.2 metric 100", "eth0 veth false, eth1 veth false"},
			{"next hops", "ip route add default nexthop via 10.9.0.2 nexthop via 10.9.1.2 weight 9 nexthop dev eth2", "eth0 veth false, eth1 veth false, eth2 veth false"},
			{"next hops of IPv6", "ip -6 route add default nexthop via fd09:0::2 nexthop via fd09:3::2", "eth0 veth false, eth3 veth false"},
			{"next hop by number", "ip nexthop add id 7 via 10.9.0.2 dev eth0; ip route add default nhid 7", "eth0 veth false"},
			{"next hops by number", "ip nexthop replace id 7 via 10.9.0.2 dev eth0; ip nexthop add id 8 via 10.9.1.2 dev eth1; ip nexthop add id 9 group 7/8; ip route add default nhid 9", "eth0 veth false, eth1 veth false"},
			{"no gateway", "ip route add default dev eth1", "eth1 veth false"},
			{"for some sources", "ip -6 route add default from 2001:db8::/64 via fd09:2::2", "eth2 veth false"},
			{"other tables", "ip route add default via 10.9.0.2 table 100; ip -6 route add default via fd09:0::2 table 2005; ip route add local default dev lo table 2004", ""},
			{"halves", "ip route add 0.0.0.0/1 via 10.9.0.2; ip route add 128.0.0.0/1 via 10.9.0.2", ""},
			{"refused", "ip route add unreachable default; ip -6 route add blackhole default", ""},
			{"lo", "ip route add default dev lo", ""},
			{"bridge", "ip route add default dev br0", "br0 bridge true"},
			{"veth with both ends here", "ip route add default dev near0", "near0 veth true"},
			{"macvlan of an interface here", "ip route add default dev shim", "shim macvlan true"},
			{"macvlan of an interface elsewhere", "ip route add default dev mac", "mac macvlan false"},
			{"TAP device", "ip route add default dev tap0 metric 9; ip route add default dev eth0", "eth0 veth false, tap0 tuntap true"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				sh(t, "ip nexthop flush; ip route flush exact default; ip -6 route flush exact default; ip route flush exact 0.0.0.0/1; ip route flush exact 128.0.0.0/1\n"+tt.script)
				found, err := (&kernelNode{}).defaultInterfaces()
				check.NoError(t, err)
				var got []string
				for _, d := range found {
					got = append(got, fmt.Sprint(d.name, " ", d.kind, " ", d.mayCarryPods))
				}
				if diff := cmp.Diff(tt.want, strings.Join(got, ", ")); diff != "" {
					t.Errorf("(-want +got):\n%s\n%s", diff, sh(t, "ip route; ip -6 route"))
				}
			})
		}
	})
}

func TestMonitorDefaultRoutes(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		addDefaultRoutes(t)
		for _, change := range []string{
			"ip route add default via 10.9.0.2",
			"ip route replace default via 10.9.1.2",
			"ip route del default",
			"ip -6 route add default via fd09:0::2",
			"ip -6 route append default via fd09:1::2",
			"ip -6 route del default via fd09:0::2",
			"ip route add default nexthop via 10.9.0.2 nexthop via 10.9.1.2",
		} {
			ctx, cancel := context.WithCancel(t.Context())
			signals := watchRemovals(ctx, watchSpec{routes: true})
			sh(t, change)
			if _, open := <-signals; !open {
				t.Fatal("closed")
			}
			cancel()
			for range signals {
			}
		}
		source := monitorSource{unix.NETLINK_ROUTE, []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, isDefaultRouteChange}
		wantNoSignal(t, source, "\x0a\x09\x03\x02", 8, func() {
			sh(t, `ip route add 198.51.100.0/24 via 10.9.0.2
ip route del 198.51.100.0/24
ip route add default via 10.9.0.2 table 100
ip -6 route add default via fd09:0::2 table 2005
ip -6 route add 2001:db8::/32 via fd09:0::2
ip -6 route del 2001:db8::/32
ip addr add 192.0.2.1/24 dev eth0
ip addr del 192.0.2.1/24 dev eth0
ip route add unreachable default metric 900
ip route add default via 10.9.3.2 metric 800`)
		})
	})
}

// FuzzRoutes has any bytes come as messages about routes: none may break the reader.
func FuzzRoutes(f *testing.F) {
	route := make([]byte, unix.SizeofRtMsg)
	route[routeTable], route[routeType] = unix.RT_TABLE_MAIN, unix.RTN_UNICAST
	for _, attr := range []string{
		"\x08\x00\x04\x00\x02\x00\x00\x00",                                                 // one interface
		"\x14\x00\x09\x00\x08\x00\x00\x00\x02\x00\x00\x00\x08\x00\x00\x00\x03\x00\x00\x00", // two next hops
		"\x0c\x00\x09\x00\x03\x00\x00\x00\x02\x00\x00\x00",
	} {
		f.Add(append(route[:len(route):len(route)], attr...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(routeInterfaces(b)); n*hopHeader > len(b)+hopHeader {
			t.Fatalf("%d interfaces from %d bytes", n, len(b))
		}
		isDefaultRouteChange(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWROUTE}, Data: b})
	})
}
