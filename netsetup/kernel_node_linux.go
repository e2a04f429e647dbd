package netsetup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxDumpTries is how often a netlink dump is made if the kernel reports that a change has interrupted
// it. The next re-check tries again.
const maxDumpTries = 3

// kernelNode is the Node of this machine, in the network namespace of the process. It uses netlink
// with one short-lived socket per request. The zero value is ready.
type kernelNode struct{}

// thisNode returns the Node of this machine.
func thisNode() (Node, error) { return &kernelNode{}, nil }

func (k *kernelNode) chooseBackend(ctx context.Context, setting Netfilter, addrs []netip.Addr) (backendChoice, error) {
	return chooseBackend(ctx, setting, addrs)
}

func (k *kernelNode) watchRemovals(ctx context.Context, p Plan) (addresses, rules <-chan struct{}) {
	return watchRemovals(ctx, watchSpec{iface: p.Interface, addrs: p.Addresses}),
		watchRemovals(ctx, watchSpec{rules: len(p.rules.addrs) > 0, routes: p.followsRoutes})
}

// Interface implements Node.
func (k *kernelNode) Interface(name string) (Interface, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Interface{}, netlinkError(err)
	}
	return Interface{Name: name, Kind: l.Type(), Up: l.Attrs().Flags&net.FlagUp != 0}, nil
}

// AddDummy implements Node.
func (k *kernelNode) AddDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoDummy, err)
	}
	return netlinkError(err)
}

// SetUp implements Node.
func (k *kernelNode) SetUp(link string) error { return withLink(link, netlink.LinkSetUp) }

// DeleteInterface implements Node.
func (k *kernelNode) DeleteInterface(link string) error { return withLink(link, netlink.LinkDel) }

// withLink calls f with an interface.
func withLink(name string, f func(netlink.Link) error) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = f(l)
	}
	return netlinkError(err)
}

// Addrs implements Node.
func (k *kernelNode) Addrs() ([]Addr, error) {
	var found []netlink.Addr
	var err error
	for range maxDumpTries {
		found, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, netlinkError(err)
	}
	var addrs []Addr
	names := make(map[int]string)
	for _, f := range found {
		ip, ok := netip.AddrFromSlice(f.IP)
		if !ok {
			continue
		}
		bits, _ := f.Mask.Size()
		name, known := names[f.LinkIndex]
		if !known {
			l, err := netlink.LinkByIndex(f.LinkIndex)
			if err != nil {
				continue // the interface was deleted since, with its addresses
			}
			name = l.Attrs().Name
			names[f.LinkIndex] = name
		}
		addrs = append(addrs, Addr{Interface: name, Prefix: netip.PrefixFrom(ip.Unmap(), bits), Label: f.Label})
	}
	return addrs, nil
}

// AddAddr implements Node.
func (k *kernelNode) AddAddr(a Addr) error {
	addr := &netlink.Addr{IPNet: ipNet(a.Prefix), Label: a.Label}
	if a.Prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // else it is tentative for a second, and bind fails
	}
	err := withLink(a.Interface, func(l netlink.Link) error { return netlink.AddrAdd(l, addr) })
	if a.Prefix.Addr().Is6() && isAny(err, unix.EACCES, unix.EAFNOSUPPORT, unix.EOPNOTSUPP) {
		// The sysctl disable_ipv6 causes EACCES; a lack of capability is EPERM.
		return fmt.Errorf("%w on %s: %v", ErrNoIPv6, a.Interface, err) //nolint:errorlint // wrapped, EACCES would look like a lack of permission
	}
	return err
}

// DeleteAddr implements Node.
func (k *kernelNode) DeleteAddr(a Addr) error {
	err := withLink(a.Interface, func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: ipNet(a.Prefix)})
	})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// netlinkError adds this package's sentinels to an error of netlink. EPERM is fs.ErrPermission by
// itself.
func netlinkError(err error) error {
	var gone netlink.LinkNotFoundError
	switch {
	case errors.As(err, &gone), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

const (
	// ctSubsystem is NFNL_SUBSYS_CTNETLINK in the high byte of a message type.
	ctSubsystem = 1 << 8
	// netfilterHeader is the length of struct nfgenmsg, which precedes the attributes.
	netfilterHeader = 4
	// maxConntrackDeletes bounds the entries deleted at once, at 200 bytes each. A pod has
	// 28,000 source ports, and an entry lives for two minutes.
	maxConntrackDeletes = 1 << 16
)

// deleteConntrack implements Node. An entry lives for two minutes, and until then every query from
// the same source port goes to the same server, which may be a pod that is gone. kube-proxy deletes
// the entries for Services, but not those for our addresses. TCP entries stay: the connections to a
// terminating server are still open.
//
// It reads the whole table, which takes tenths of a second with 100,000 entries.
func (k *kernelNode) deleteConntrack(addrs []netip.Addr, dns uint16, servers []netip.AddrPort) (deleted int, err error) {
	var problems []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == (family == unix.AF_INET) }) {
			continue
		}
		list, err := listConntrack(family, func(e conntrackEntry) bool { return e.isStale(addrs, dns, servers) })
		problems = append(problems, err)
		for _, attributes := range list {
			request := newConntrackRequest(nl.IPCTNL_MSG_CT_DELETE, family, unix.NLM_F_ACK)
			request.AddRawData(attributes)
			_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
			switch {
			case err == nil:
				deleted++
			case !errors.Is(err, fs.ErrNotExist): // else it expired meanwhile
				problems = append(problems, err)
			}
		}
	}
	if err := errors.Join(problems...); err != nil {
		return deleted, fmt.Errorf("deleting connection-tracking entries of removed servers: %w", err)
	}
	return deleted, nil
}

// conntrackEntry is a tracked connection or UDP flow.
type conntrackEntry struct {
	protocol uint8
	// originalDst is the destination before translation, replySrc the server that answers.
	originalDst, replySrc netip.AddrPort
}

// isStale reports whether an entry is about a UDP query to one of the addresses that goes to another server.
func (e conntrackEntry) isStale(addrs []netip.Addr, dns uint16, servers []netip.AddrPort) bool {
	return e.protocol == unix.IPPROTO_UDP && e.originalDst.Port() == dns && slices.Contains(addrs, e.originalDst.Addr()) &&
		e.replySrc.Addr() != e.originalDst.Addr() && !slices.Contains(servers, e.replySrc)
}

func newConntrackRequest(what int, family uint8, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(ctSubsystem|what, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// listConntrack returns the netlink attributes of the wanted entries of a family.
func listConntrack(family uint8, wanted func(conntrackEntry) bool) (list [][]byte, err error) {
	err = newConntrackRequest(nl.IPCTNL_MSG_CT_GET, family, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) < netfilterHeader {
			return true
		}
		attributes := message[netfilterHeader:]
		if f, ok := parseConntrack(attributes); ok && wanted(f) {
			list = append(list, bytes.Clone(attributes))
		}
		return len(list) < maxConntrackDeletes
	})
	return list, err
}

// parseConntrack returns false if the attributes do not describe an entry.
func parseConntrack(attributes []byte) (f conntrackEntry, ok bool) {
	orig, reply := attrValue(attributes, 0, nl.CTA_TUPLE_ORIG), attrValue(attributes, 0, nl.CTA_TUPLE_REPLY)
	originalDst, ok := tupleEndpoint(orig, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
	replySrc, too := tupleEndpoint(reply, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
	protocol := attrValue(attrValue(orig, 0, nl.CTA_TUPLE_PROTO), 0, nl.CTA_PROTO_NUM)
	if !ok || !too || len(protocol) != 1 {
		return f, false
	}
	return conntrackEntry{protocol: protocol[0], originalDst: originalDst, replySrc: replySrc}, true
}

// tupleEndpoint returns the address and port in a tuple that have these attribute types.
func tupleEndpoint(tuple []byte, ipv4, ipv6, port uint16) (netip.AddrPort, bool) {
	addrs := attrValue(tuple, 0, nl.CTA_TUPLE_IP)
	ip := attrValue(addrs, 0, ipv4)
	if ip == nil {
		ip = attrValue(addrs, 0, ipv6)
	}
	addr, ok := netip.AddrFromSlice(ip)
	number := attrValue(attrValue(tuple, 0, nl.CTA_TUPLE_PROTO), 0, port)
	if !ok || len(number) != 2 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(number)), true
}

// maxStackDepth is how many stacked interfaces are followed, such as a VLAN on a bond on hardware.
// The kernel allows eight. Pods may use a deeper stack.
const maxStackDepth = 4

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

// cleanEgressSets implements Node.
func (k *kernelNode) cleanEgressSets() (removed, used int, err error) {
	handles, err := listEgressSets()
	if err != nil || len(handles) == 0 {
		return 0, 0, err
	}
	var e EgressSets
	used, err = e.prune(handles, nil)
	if e.socket != nil {
		e.socket.Close()
	}
	return len(handles) - used, used, err
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
				for _, index := range routeInterfaces(body) {
					indexes[index] = true
				}
				return true
			})
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		// With EOPNOTSUPP and EAFNOSUPPORT the kernel does not have the family.
		if err != nil && !isAny(err, netlink.ErrDumpInterrupted, unix.EOPNOTSUPP, unix.EAFNOSUPPORT) {
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

// routeInterfaces returns the interface indexes in a message about a default route: one, or those
// of its next hops. It returns none for other messages.
func routeInterfaces(body []byte) (indexes []int) {
	if !isDefaultRoute(body) {
		return nil
	}
	if out := attrValue(body, unix.SizeofRtMsg, unix.RTA_OIF); len(out) == 4 {
		indexes = append(indexes, int(nl.NativeEndian().Uint32(out)))
	}
	hops := attrValue(body, unix.SizeofRtMsg, unix.RTA_MULTIPATH)
	for len(hops) >= hopHeader {
		length := int(nl.NativeEndian().Uint16(hops))
		if length < hopHeader || length > len(hops) {
			break
		}
		indexes = append(indexes, int(nl.NativeEndian().Uint32(hops[hopInterface:])))
		hops = hops[min(nlAlign(length), len(hops)):]
	}
	return indexes
}

// isDefaultRouteChange reports whether a default route was added or removed. The kernel does not
// report the routes of an interface that goes down; rules for that interface match nothing then.
func isDefaultRouteChange(m syscall.NetlinkMessage) bool {
	return (m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE) && isDefaultRoute(m.Data)
}
