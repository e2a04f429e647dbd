package netsetup

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// defaultInterface is an interface that a default route of this node leads over.
type defaultInterface struct {
	name string
	// kind is the kernel's name of the driver; hardware has "device".
	kind string
	// mayCarryPods: pods of this node may send by it, too, or nobody can say that they don't.
	mayCarryPods bool
}

// maxStackDepth is how many interfaces may stand on each other, such as a VLAN on a bond on
// hardware. The kernel allows eight; what is deeper is taken for shared.
const maxStackDepth = 4

// defaultInterfaces implements Node.
func (k *kernelNode) defaultInterfaces() ([]defaultInterface, error) {
	indexes, err := defaultRoutes()
	if err != nil {
		return nil, err
	}
	var found []defaultInterface
	for _, index := range indexes {
		l, err := netlink.LinkByIndex(index)
		if errors.Is(netlinkError(err), ErrNotFound) {
			continue // it has gone since, and its routes with it
		}
		if err != nil {
			return nil, netlinkError(err)
		}
		if name := l.Attrs().Name; name != loopback {
			found = append(found, defaultInterface{name: name, kind: l.Type(), mayCarryPods: mayCarryPods(l, maxStackDepth)})
		}
	}
	return found, nil
}

// mayCarryPods reports whether pods of this node may send by an interface. It is false only for
// kinds that are known to lead to somewhere else: an interface that is wrongly taken for one
// of those costs all pods behind it their DNS. It is true of bridges whatever their ports are
// at this moment, as pods come and go; of a TAP device, behind which there may be a switch in
// user space, as Calico's VPP; and of what ends at another interface of this node.
func mayCarryPods(l netlink.Link, depth int) bool {
	attrs := l.Attrs()
	elsewhere := attrs.NetNsID >= 0 // the other end, or the interface below, is in another namespace
	switch l.Type() {
	case "device", "bond", "team", "wireguard", kindDummy:
		return false
	case "veth", "macvlan", "ipvlan":
		return !elsewhere // inside of a container the first two are its way out
	case "vlan", "macsec":
		if elsewhere {
			return false
		}
		lower, err := netlink.LinkByIndex(attrs.ParentIndex)
		return err != nil || depth == 0 || mayCarryPods(lower, depth-1)
	}
	return true
}

// defaultRoutes returns the indexes, in order and each once, of the interfaces that default
// routes of table main lead over, of both families, whatever their metrics. Other tables
// are not looked at: there CNIs have default routes of their own, such as Cilium's over
// cilium_host, by which pods come in.
func defaultRoutes() ([]int, error) {
	indexes := make(map[int]bool)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := listDefaultRoutes(family, indexes); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(indexes)), nil
}

// listDefaultRoutes adds the interfaces of one family. A list that changes while it is read is
// read again; of one that changes each time everything counts that was seen.
func listDefaultRoutes(family uint8, indexes map[int]bool) (err error) {
	for range maxDumpTries {
		request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		// Routes are looked at one by one: a router among nodes has a million.
		err = request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(body []byte) bool {
			for index := range routeInterfaces(body) {
				indexes[index] = true
			}
			return true
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // the last two: the kernel does not have the family
	}
	return err
}

// Offsets in a message about a route, without its header (struct rtmsg), and in one of its
// next hops (struct rtnexthop).
const (
	routePrefix  = 1 // length of the destination's prefix
	routeTable   = 4
	routeType    = 7
	routeFlags   = 8
	hopInterface = 4
	hopHeader    = 8
)

// isDefaultRoute reports whether a message is about a default route of table main that leads
// somewhere.
func isDefaultRoute(body []byte) bool {
	return len(body) >= unix.SizeofRtMsg && body[routePrefix] == 0 && body[routeTable] == unix.RT_TABLE_MAIN &&
		body[routeType] == unix.RTN_UNICAST && nl.NativeEndian().Uint32(body[routeFlags:])&unix.RTM_F_CLONED == 0
}

// routeInterfaces gives the interfaces that a message about a default route names: one, or
// those of its next hops. Of other messages there are none.
func routeInterfaces(body []byte) iter.Seq[int] {
	return func(yield func(int) bool) {
		if !isDefaultRoute(body) {
			return
		}
		if out := attrValue(body, unix.SizeofRtMsg, unix.RTA_OIF); len(out) == 4 && !yield(int(nl.NativeEndian().Uint32(out))) {
			return
		}
		hops := attrValue(body, unix.SizeofRtMsg, unix.RTA_MULTIPATH)
		for len(hops) >= hopHeader {
			length := int(nl.NativeEndian().Uint16(hops))
			if length < hopHeader || length > len(hops) || !yield(int(nl.NativeEndian().Uint32(hops[hopInterface:]))) {
				return
			}
			hops = hops[min(nlAlign(length), len(hops)):]
		}
	}
}

// watchDefaultRoutes implements Node.
func (k *kernelNode) watchDefaultRoutes(ctx context.Context) <-chan struct{} {
	return monitor(ctx, watchSpec{}, []monitorSource{{unix.NETLINK_ROUTE,
		unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE, isDefaultRouteChange}})
}

// isDefaultRouteChange: a default route has come or gone. Of the routes of an interface that
// goes down the kernel says nothing; then its rules are of no effect either.
func isDefaultRouteChange(_ watchSpec, kind uint16, body []byte) bool {
	return (kind == unix.RTM_NEWROUTE || kind == unix.RTM_DELROUTE) && isDefaultRoute(body)
}
