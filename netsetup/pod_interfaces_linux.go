package netsetup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// maxPodInterfaces bounds the watched interfaces, at a few hundred bytes each. A node has 110
	// pods by default, and up to 2,500 in tests of large nodes.
	maxPodInterfaces = 4096

	// listDelay is the longest time from an event to the listing of all interfaces. A CNI plugin adds,
	// moves, renames and raises an interface within some tens of milliseconds.
	listDelay = 100 * time.Millisecond

	// checkInterval is the time between two calls of Checked: the kernel does not report
	// changes of tcx programs. A check of 250 interfaces takes some milliseconds.
	checkInterval = time.Second

	// checksPerFilterList is the number of checks after which filters are listed even without an
	// event.
	checksPerFilterList = 10

	// minCheckInterval is the minimum time between two checks, which an event of a filter
	// triggers: tools add several filters at once.
	minCheckInterval = 100 * time.Millisecond
)

// PodInterface is the node's end of a pod's interface: a veth whose peer is in another network
// namespace, and that has no default route of the node.
type PodInterface struct {
	Index int
	Name  string
}

// PodInterfaceObserver has callbacks, called one at a time from one goroutine. They may block; later
// events wait.
type PodInterfaceObserver struct {
	// Added is called for every existing pod interface, then for each new one; Removed for each
	// that is gone.
	Added, Removed func(PodInterface)
	// Checked is called after Added, every second, and 100 ms after a filter has changed.
	Checked func(PodInterfaceCheck)
}

// PodInterfaceCheck is the state of the added interfaces.
type PodInterfaceCheck struct {
	// Filtered has the indexes of the interfaces with tc filters, which the kernel runs after
	// tcx programs. Read-only; nil with Err.
	Filtered map[int]bool
	// Incomplete: pods have other interfaces, of a kind that is not watched or beyond the limit
	// of 4,096.
	Incomplete bool
	// Err: the state is unknown.
	Err error
}

// WatchPodInterfaces calls o for the pod interfaces in this network namespace until ctx is done, and
// then returns nil. It lists all interfaces again if the kernel has dropped events. It returns an error
// only if it cannot start. It needs no privilege.
//
// An interface is removed when it is deleted, when it or its peer is moved so that both are in one
// namespace, and when it gets a default route of the node (noticed at the next event of any veth). A
// new interface with the same index is reported as Removed, then Added. A renamed interface is not
// reported, unless events were dropped; Removed gets the last known name. Calls are late by some hundred
// milliseconds: Added may be called for an interface that is already deleted. Interfaces beyond 4,096
// are ignored.
func WatchPodInterfaces(ctx context.Context, o PodInterfaceObserver) error {
	f := podWatcher{PodInterfaceObserver: o, interfaces: make(map[int]podInterface)}
	source := monitorSource{protocol: unix.NETLINK_ROUTE, groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_TC}}
	// Before the first list, so that changes in between arrive as events.
	socket, err := source.open()
	if err != nil {
		return fmt.Errorf("subscribing to interface events: %w", err)
	}
	if err := f.list(); err != nil {
		socket.Close()
		return fmt.Errorf("listing interfaces: %w", err)
	}
	events := source.messages(ctx, socket, nil)
	for {
		select {
		case messages, open := <-events:
			if !open {
				return nil
			}
			f.handleMessages(messages)
		case <-time.After(time.Until(f.checkAt)):
			f.runDue()
		}
	}
}

// podWatcher is the state of [WatchPodInterfaces]. It is not safe for concurrent use.
type podWatcher struct {
	PodInterfaceObserver
	interfaces map[int]podInterface // by index
	// incomplete: see PodInterfaceCheck.
	incomplete bool
	// mustList: the next check begins with a list of all interfaces.
	mustList bool
	// missedEvents: events were dropped, so that a known index may be another interface now.
	missedEvents bool
	// checkedAt is the time of the last check, checkAt the time of the next.
	checkedAt, checkAt time.Time
	// filtered caches which interfaces have filters, by index; nil: nothing is cached. The kernel reports
	// changes of filters, and listing those of an interface with an empty clsact takes two requests.
	filtered map[int]bool
	checks   int // since the filters were listed
}

// runDue makes the check that is due.
func (f *podWatcher) runDue() {
	if f.mustList {
		f.mustList = false
		if f.list() == nil {
			return // it has checked
		}
		f.mustList = true
	}
	f.check()
}

// check calls Checked.
func (f *podWatcher) check() {
	var err error
	if f.checks++; f.filtered == nil || f.checks >= checksPerFilterList {
		f.filtered, err = filteredInterfaces(f.interfaces)
		f.checks = 0
	}
	f.Checked(PodInterfaceCheck{Filtered: f.filtered, Incomplete: f.incomplete, Err: err})
	f.checkedAt = time.Now()
	f.checkAt = f.checkedAt.Add(checkInterval)
}

// checkSoon schedules a check that lists the filters.
func (f *podWatcher) checkSoon() {
	f.filtered = nil
	if at := f.checkedAt.Add(minCheckInterval); at.Before(f.checkAt) {
		f.checkAt = at
	}
}

// listSoon schedules a list of all interfaces.
func (f *podWatcher) listSoon() {
	if at := time.Now().Add(listDelay); !f.mustList && at.Before(f.checkAt) {
		f.checkAt = at
	}
	f.mustList = true
}

// handleMessages handles messages; nil if some were lost. Any message about a veth schedules a list, because
// some changes, such as a moved peer, are reported for the other end only.
func (f *podWatcher) handleMessages(messages []syscall.NetlinkMessage) {
	if messages == nil {
		f.missedEvents = true
		f.listSoon()
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
			f.handleFilter(m.Data)
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if what := interfaceKind(m.Data); what != veth && what != netkit {
				continue
			}
			f.listSoon()
			if m.Header.Type == unix.RTM_DELLINK {
				f.remove(int(nl.DeserializeIfInfomsg(m.Data).Index))
			}
		}
	}
}

// handleFilter handles a message about a qdisc or a filter, without its header. Messages about shared
// blocks of filters name no interface.
func (f *podWatcher) handleFilter(body []byte) {
	const shared = 0xFFFFFFFF // TCM_IFINDEX_MAGIC_BLOCK
	if len(body) < nl.SizeofTcMsg {
		return
	}
	index := nl.DeserializeTcMsg(body).Ifindex
	if _, known := f.interfaces[int(index)]; known || uint32(index) == shared {
		f.checkSoon()
	}
}

func (f *podWatcher) remove(index int) {
	if l, known := f.interfaces[index]; known {
		delete(f.interfaces, index)
		f.Removed(l.PodInterface)
	}
}

// list updates the known interfaces from a list of all, and checks them. After an interrupted dump it
// uses the partial list and schedules another one; it fails on other errors only.
func (f *podWatcher) list() error {
	found, other, err := listPodInterfaces()
	part := errors.Is(err, netlink.ErrDumpInterrupted)
	if err != nil && !part {
		return err
	}
	f.removeMissing(found, part)
	f.addNew(found)
	f.filtered = nil
	f.incomplete = other || part || len(f.interfaces) < len(found)
	f.check()
	f.missedEvents = f.missedEvents && part
	if part {
		f.listSoon()
	}
	return nil
}

// removeMissing removes the interfaces that are not in found, unless found is partial, and those that
// have been replaced.
func (f *podWatcher) removeMissing(found map[int]podInterface, part bool) {
	for _, index := range slices.Sorted(maps.Keys(f.interfaces)) {
		now, there := found[index]
		if there && f.missedEvents && now != f.interfaces[index] || !there && !part {
			f.remove(index)
		}
	}
}

// addNew adds the interfaces in found, up to maxPodInterfaces.
func (f *podWatcher) addNew(found map[int]podInterface) {
	for _, index := range slices.Sorted(maps.Keys(found)) {
		_, known := f.interfaces[index]
		if !known && len(f.interfaces) >= maxPodInterfaces {
			continue
		}
		f.interfaces[index] = found[index] // its name may have changed
		if !known {
			f.Added(found[index].PodInterface)
		}
	}
}

// podInterface is a PodInterface with what distinguishes it from a later one of the same index and name.
type podInterface struct {
	PodInterface
	mac             string // of the hardware
	peer, peerNetns uint32 // index of the other end, and the kernel's number for its namespace
}

// The kinds of pod interfaces. Interfaces of kind netkit are not watched.
const (
	veth   = "veth"
	netkit = "netkit"
)

// listPodInterfaces returns the pod interfaces by index. With netlink.ErrDumpInterrupted the result is
// partial. otherKind: pods have interfaces of a kind that is not watched.
func listPodInterfaces() (found map[int]podInterface, otherKind bool, err error) {
	messages, err := listInterfaces(veth)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, false, err
	}
	outward := defaultRouteInterfaces()
	found = make(map[int]podInterface, len(messages))
	for _, body := range messages {
		if l, ok := parsePodInterface(body, veth); ok && !slices.Contains(outward, l.Index) {
			found[l.Index] = l
		}
	}
	messages, more := listInterfaces(netkit)
	for _, body := range messages {
		_, ok := parsePodInterface(body, netkit)
		otherKind = otherKind || ok
	}
	if err == nil {
		err = more
	}
	return found, otherKind, err
}

// listInterfaces returns a message for each interface of a kind, without statistics. A kernel without
// that kind returns all interfaces.
func listInterfaces(ofKind string) ([][]byte, error) {
	const withoutStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withoutStatistics)))
	kind := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	kind.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated(ofKind))
	request.AddData(kind)
	return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
}

// interfaceKind returns the kind of the interface in a message without its header; "" in messages about
// bridge ports.
func interfaceKind(body []byte) string {
	if len(body) < unix.SizeofIfInfomsg {
		return ""
	}
	return attrName(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO), 0, unix.IFLA_INFO_KIND)
}

// parsePodInterface parses a message about an interface of a kind, without its header. ok is false unless
// the peer is in another namespace, for which the kernel then gives a number.
func parsePodInterface(body []byte, kind string) (l podInterface, ok bool) {
	if interfaceKind(body) != kind {
		return podInterface{}, false
	}
	peer := attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINK)
	space := attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINK_NETNSID)
	if len(peer) != 4 || len(space) != 4 {
		return podInterface{}, false
	}
	return podInterface{
		PodInterface: PodInterface{
			Index: int(nl.DeserializeIfInfomsg(body).Index),
			Name:  attrName(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME),
		},
		mac:       string(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_ADDRESS)),
		peer:      nl.NativeEndian().Uint32(peer),
		peerNetns: nl.NativeEndian().Uint32(space),
	}, true
}

// defaultRouteInterfaces returns the indexes of the interfaces of the node's default routes; nil without
// default routes. In a node that is itself a container, one of them is a veth, through which every packet
// of the node passes. It looks up routes to documentation addresses (RFC 5737, RFC 3849).
func defaultRouteInterfaces() (indexes []int) {
	for _, nobody := range []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")} {
		routes, _ := netlink.RouteGet(nobody)
		for _, r := range routes {
			indexes = append(indexes, r.LinkIndex)
		}
	}
	return indexes
}

// filteredInterfaces returns the indexes of the interfaces that have tc filters in any direction: at
// clsact, at ingress, or at an egress qdisc. One dump lists the qdiscs of all interfaces; most have
// none. The map is nil after an error.
func filteredInterfaces(interfaces map[int]podInterface) (map[int]bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	filtered := make(map[int]bool)
	for _, body := range messages {
		if len(body) < nl.SizeofTcMsg {
			continue
		}
		q := nl.DeserializeTcMsg(body)
		index := int(q.Ifindex)
		if _, known := interfaces[index]; !known || q.Handle == 0 || filtered[index] {
			continue
		}
		parents := []uint32{q.Handle}
		switch attrName(body, nl.SizeofTcMsg, nl.TCA_KIND) {
		case "clsact":
			parents = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}
		case "ingress":
			parents = []uint32{netlink.HANDLE_MIN_INGRESS}
		}
		if filtered[index], err = hasFilters(index, parents); err != nil {
			return nil, err
		}
	}
	return filtered, nil
}

// hasFilters reports whether an interface has a filter at one of the parents; false if the interface was
// deleted.
func hasFilters(index int, parents []uint32) (bool, error) {
	for _, parent := range parents {
		request := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(index), Parent: parent})
		messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER)
		switch {
		case len(messages) > 0:
			return true, nil
		case err != nil && !errors.Is(err, unix.ENODEV):
			return false, fmt.Errorf("listing the filters of interface %d: %w", index, err)
		}
	}
	return false, nil
}

// HasCilium reports whether Cilium's datapath runs on this node: whether one of its interfaces exists.
// Cilium's programs on pod interfaces enforce policies and redirect packets.
func HasCilium() (bool, error) {
	for _, name := range []string{"cilium_host", "cilium_net"} {
		_, err := (&kernelNode{}).Interface(name)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, ErrNotFound):
			return false, fmt.Errorf("looking up interface %s: %w", name, err)
		}
	}
	return false, nil
}
