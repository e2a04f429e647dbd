package netsetup

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxStackDepth is how many stacked interfaces are followed, such as a VLAN on a bond on hardware.
// The kernel allows eight. Pods may use a deeper stack.
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
			continue // deleted since, with its routes
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

// mayCarryPods reports whether pods of this node may use an interface. It is false only for kinds
// that never lead to pods, because a wrong false costs all pods behind the interface their DNS.
// It is true for a bridge whatever its ports, as pods come and go; for a TAP device, behind which
// there may be a switch in user space, such as Calico's VPP; and for an interface whose other end
// is on this node.
func mayCarryPods(l netlink.Link, depth int) bool {
	attrs := l.Attrs()
	otherNetns := attrs.NetNsID >= 0 // of the other end, or of the lower interface
	switch l.Type() {
	case "device", "bond", "team", "wireguard", kindDummy:
		return false
	case "veth", "macvlan", "ipvlan":
		return !otherNetns // in a container the first two lead out of it
	case "vlan", "macsec":
		if otherNetns {
			return false
		}
		lower, err := netlink.LinkByIndex(attrs.ParentIndex)
		return err != nil || depth == 0 || mayCarryPods(lower, depth-1)
	}
	return true
}

// defaultRoutes returns the indexes of the interfaces of all default routes in table main, of both
// families and any metric, sorted and without duplicates. In other tables CNI plugins have default
// routes to pods, such as Cilium's over cilium_host.
//
// It repeats an interrupted dump, maxDumpTries in all, and uses what every dump returned.
func defaultRoutes() ([]int, error) {
	indexes := make(map[int]bool)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var err error
		for range maxDumpTries {
			request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
			// One route at a time: a node that is a router has a million. The library's own list fails at a
			// route that it can't parse.
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
		// With EOPNOTSUPP and EAFNOSUPPORT the kernel does not have the family.
		harmless := []error{netlink.ErrDumpInterrupted, unix.EOPNOTSUPP, unix.EAFNOSUPPORT}
		if err != nil && !slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(indexes)), nil
}

// Offsets in a route message without its header (struct rtmsg), and in a next hop (struct
// rtnexthop).
const (
	routePrefix  = 1 // length of the destination's prefix
	routeTable   = 4
	routeType    = 7
	routeFlags   = 8
	hopInterface = 4
	hopHeader    = 8
)

// isDefaultRoute reports whether a message is about a unicast default route in table main.
func isDefaultRoute(body []byte) bool {
	return len(body) >= unix.SizeofRtMsg && body[routePrefix] == 0 && body[routeTable] == unix.RT_TABLE_MAIN &&
		body[routeType] == unix.RTN_UNICAST && nl.NativeEndian().Uint32(body[routeFlags:])&unix.RTM_F_CLONED == 0
}

// routeInterfaces yields the interface indexes in a message about a default route: one, or those
// of its next hops. It yields nothing for other messages.
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

// isDefaultRouteChange reports whether a default route was added or removed. The kernel does not
// report the routes of an interface that goes down; rules for that interface match nothing then.
func isDefaultRouteChange(m syscall.NetlinkMessage) bool {
	return (m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE) && isDefaultRoute(m.Data)
}
