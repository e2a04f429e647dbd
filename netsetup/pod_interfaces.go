package netsetup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// maxPodInterfaces bounds what is followed, a few hundred bytes for each. A node has 110 pods
	// by default, and 2,500 where people try what it can bear; half as much could be reached,
	// and twice as much is memory for links that no node has.
	maxPodInterfaces = 4096

	// listDelay is how long news are gathered before all links are listed. A CNI plugin
	// makes, moves, names and raises a link within some tens of milliseconds: at half of it
	// most pods would cost two lists, and twice as much is longer than some programs take
	// from their start to their first query, which the agent answers until then.
	listDelay = 100 * time.Millisecond

	// checkInterval is between two looks at what stands on the links beside our programs: programs
	// of tcx come and go without news. A look at 250 links takes some milliseconds: half of it
	// would be work for nothing, and twice as much is answers that a policy's program does not
	// see.
	checkInterval = time.Second

	// checksPerFilterList is after how many of them filters are listed without news. There should be
	// none of which no news came; at half of it, where all links have clsact, most of what looks
	// cost would be for that.
	checksPerFilterList = 10

	// minCheckInterval is from news of filters to the look, and the least time between two: a
	// tool adds several filters at once. It is a tenth of the interval at most, so that what
	// changes all the time does not cost much more than that.
	minCheckInterval = 100 * time.Millisecond
)

// PodInterface is the node's end of a link whose other end is a pod's: a veth whose peer is in
// another network namespace, and over which the node's default route does not lead.
type PodInterface struct {
	Index int
	Name  string
}

// PodInterfaceObserver is told of pods' links, one call at a time. The callbacks may block; what
// happens meanwhile is told later.
type PodInterfaceObserver struct {
	// Added is called for every pod's link there is, and then for each that comes; Gone for each
	// that goes.
	Added, Removed func(PodInterface)
	// Checked is called after Seen, every second, and a tenth of one after news of filters.
	Checked func(PodInterfaceCheck)
}

// PodInterfaceCheck is what stands on the links that were seen, as far as tc tells.
type PodInterfaceCheck struct {
	// Filtered has the links, by index, that have tc filters: in the kernel's order they are
	// behind the programs of tcx.
	Filtered map[int]bool
	// Incomplete says that pods have links that are not told of: they are of a kind that is not
	// followed, or one too many.
	Incomplete bool
	// Err is why nothing of this is known; nil if it is.
	Err error
}

// WatchPodInterfaces tells of the pods' links in this network namespace until ctx ends. It
// lists anew where the kernel says that news were lost. The error is why it can't follow at
// all. No privilege is needed.
//
// A link has gone when it is deleted, when it or its other end is moved so that it leads to
// no other namespace, and when the node's default route leads over it (of which there is no
// news: the next of any veth shows it). Another link of the same index is gone and then seen.
// A link that is renamed is neither, unless news were lost: gone is told the name it had
// last. What is told is some hundred milliseconds old: seen may be called for a link that is
// deleted already. Of more than 4,096 links the rest is left out.
func WatchPodInterfaces(ctx context.Context, o PodInterfaceObserver) error {
	const trafficControl = 1 << (unix.RTNLGRP_TC - 1)
	f := podWatcher{PodInterfaceObserver: o, interfaces: make(map[int]podInterface)}
	news := monitorSource{protocol: unix.NETLINK_ROUTE, groups: unix.RTMGRP_LINK | trafficControl}
	// Before the list is read: what changes in between comes as news.
	socket, err := news.open()
	if err != nil {
		return fmt.Errorf("subscribing to news of links: %w", err)
	}
	if err := f.list(); err != nil {
		socket.Close()
		return fmt.Errorf("listing links: %w", err)
	}
	for {
		if err == nil {
			f.readEvents(ctx, socket)
			socket.Close()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reopenDelay):
		}
		if socket, err = news.open(); err == nil {
			f.markMissed() // nobody looked until now
		}
	}
}

// podWatcher is the state of [WatchPodInterfaces]. It belongs to one goroutine.
type podWatcher struct {
	PodInterfaceObserver
	interfaces map[int]podInterface // by index
	// incomplete: see PodLinkLook.
	incomplete bool
	// listAt is when all links are to be listed; the zero Time while there are no news.
	listAt time.Time
	// missedEvents: of some links that went no news came, so that one of the same index may be
	// another.
	missedEvents bool
	// checkedAt is when the links were last looked at, look when they are to be again.
	checkedAt, checkAt time.Time
	filters            filterCache
}

// readEvents takes news from a socket until that breaks or ctx is done.
func (f *podWatcher) readEvents(ctx context.Context, socket *os.File) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, maxMessage)
	for {
		_ = socket.SetReadDeadline(f.nextDeadline())
		if ctx.Err() != nil {
			return // whose deadline may have been replaced
		}
		n, whole, err := receiveMessages(raw, buffer)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.runDue()
		case errors.Is(err, unix.ENOBUFS), err == nil && !whole:
			f.markMissed()
		case err != nil:
			return
		default:
			f.handleMessages(buffer[:n])
		}
	}
}

// nextDeadline is when something is to be done.
func (f *podWatcher) nextDeadline() time.Time {
	if !f.listAt.IsZero() && f.listAt.Before(f.checkAt) {
		return f.listAt
	}
	return f.checkAt
}

// runDue does what is due.
func (f *podWatcher) runDue() {
	now := time.Now()
	if f.listAt.IsZero() || now.Before(f.listAt) {
		f.check()
		return
	}
	f.listAt = time.Time{}
	if f.list() != nil {
		f.listAt = now.Add(reopenDelay)
	}
}

// check looks at all links.
func (f *podWatcher) check() {
	filtered, err := f.filters.get(f.interfaces)
	f.Checked(PodInterfaceCheck{Filtered: filtered, Incomplete: f.incomplete, Err: err})
	f.checkedAt = time.Now()
	f.checkAt = f.checkedAt.Add(checkInterval)
}

// checkSoon has all links looked at soon, as to their filters, too.
func (f *podWatcher) checkSoon() {
	f.filters.invalidate()
	if at := f.checkedAt.Add(minCheckInterval); at.Before(f.checkAt) {
		f.checkAt = at
	}
}

// listSoon has all links listed soon.
func (f *podWatcher) listSoon() {
	if f.listAt.IsZero() {
		f.listAt = time.Now().Add(listDelay)
	}
}

// markMissed notes that news were lost.
func (f *podWatcher) markMissed() {
	f.missedEvents = true
	f.listSoon()
}

// handleMessages reads a run of messages. Of a veth everything counts, as what happens to one end may
// be news of the other, of which there is no message: when a peer is moved away, say.
func (f *podWatcher) handleMessages(messages []byte) {
	for kind, body := range eachMessage(messages) {
		switch kind {
		case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
			f.handleFilter(body)
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			f.handleInterface(kind, body)
		}
	}
}

func (f *podWatcher) handleInterface(kind uint16, body []byte) {
	if what := interfaceKind(body); what != veth && what != netkit {
		return
	}
	f.listSoon()
	if kind == unix.RTM_DELLINK {
		f.remove(int(nl.NativeEndian().Uint32(body[ifinfoIndex:])))
	}
}

// handleFilter reads a message about a qdisc or a filter, without its header. Filters that links
// share say none of them.
func (f *podWatcher) handleFilter(body []byte) {
	const shared = 0xFFFFFFFF // TCM_IFINDEX_MAGIC_BLOCK
	if len(body) < nl.SizeofTcMsg {
		return
	}
	index := nl.NativeEndian().Uint32(body[tcmsgIndex:])
	if _, known := f.interfaces[int(index)]; known || index == shared {
		f.checkSoon()
	}
}

func (f *podWatcher) remove(index int) {
	if l, known := f.interfaces[index]; known {
		delete(f.interfaces, index)
		f.Removed(l.PodInterface)
	}
}

// list makes what is known equal to what there is, and looks at it. It fails only if there is
// no list; one that changed while it was read is used, and read again.
func (f *podWatcher) list() error {
	found, other, err := listPodInterfaces()
	part := errors.Is(err, netlink.ErrDumpInterrupted)
	if err != nil && !part {
		return err
	}
	f.removeMissing(found, part)
	f.addNew(found)
	f.filters.invalidate()
	f.incomplete = other || part || len(f.interfaces) < len(found)
	f.check()
	f.missedEvents = f.missedEvents && part
	if part {
		f.listSoon()
	}
	return nil
}

// removeMissing forgets what is not found; of a part of what there is links may be missing.
func (f *podWatcher) removeMissing(found map[int]podInterface, part bool) {
	for _, index := range slices.Sorted(maps.Keys(f.interfaces)) {
		now, there := found[index]
		if there && f.missedEvents && now != f.interfaces[index] || !there && !part {
			f.remove(index)
		}
	}
}

// addNew learns what is found, as far as there is room.
func (f *podWatcher) addNew(found map[int]podInterface) {
	for _, index := range slices.Sorted(maps.Keys(found)) {
		_, known := f.interfaces[index]
		if !known && len(f.interfaces) >= maxPodInterfaces {
			continue
		}
		f.interfaces[index] = found[index] // its name may be new
		if !known {
			f.Added(found[index].PodInterface)
		}
	}
}

// podInterface is a PodLink with what tells it from a later one of the same index and name.
type podInterface struct {
	PodInterface
	mac             string // of the hardware
	peer, peerNetns uint32 // index of the other end, and the kernel's number for its namespace
}

// ifinfoIndex is where a message about a link has its index (struct ifinfomsg).
const ifinfoIndex = 4

// tcmsgIndex is where one about a qdisc or a filter has it (struct tcmsg).
const tcmsgIndex = 4

// The kinds of links that lead to pods, of which the second are not followed.
const (
	veth   = "veth"
	netkit = "netkit"
)

// listPodInterfaces returns the pods' links by index, also if the list was interrupted by a
// change, which is netlink.ErrDumpInterrupted; other is whether pods have links of another
// kind.
func listPodInterfaces() (found map[int]podInterface, other bool, err error) {
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
		other = other || ok
	}
	if err == nil {
		err = more
	}
	return found, other, err
}

// listInterfaces asks for the links of a kind, without their statistics. A kernel that does not know
// the kind gives all.
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

// interfaceKind is the kind of the link that a message, without its header, is about. Those of
// the bridges, which tell that a port is one no more, say none.
func interfaceKind(body []byte) string {
	if len(body) < unix.SizeofIfInfomsg {
		return ""
	}
	return attrName(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO), 0, unix.IFLA_INFO_KIND)
}

// parsePodInterface reads a message about a link of a kind, without its header. The kernel gives a
// number for the namespace of the other end only where that is not this one.
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
			Index: int(nl.NativeEndian().Uint32(body[ifinfoIndex:])),
			Name:  attrName(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME),
		},
		mac:       string(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_ADDRESS)),
		peer:      nl.NativeEndian().Uint32(peer),
		peerNetns: nl.NativeEndian().Uint32(space),
	}, true
}

// defaultRouteInterfaces are the links by which the node reaches the world. One may be a veth: that of a
// node which is itself a container, or of an agent in a pod's namespace. To answer there
// would do no harm, as only clients that the agent answers over that very link are answered,
// but every packet of the node would pay for it. The addresses asked for are of nobody
// (RFC 5737, RFC 3849), so that the default route holds for them; without one there is no
// answer.
func defaultRouteInterfaces() (indexes []int) {
	for _, nobody := range []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")} {
		routes, _ := netlink.RouteGet(nobody)
		for _, r := range routes {
			indexes = append(indexes, r.LinkIndex)
		}
	}
	return indexes
}

// HasCilium reports whether Cilium's datapath is on this node: whether one of the links that it
// makes on each is there. Its own programs on the pods' links enforce policies, and send
// packets on from where they are.
func HasCilium() (bool, error) {
	for _, name := range []string{"cilium_host", "cilium_net"} {
		_, err := netlink.LinkByName(name)
		switch err = netlinkError(err); {
		case err == nil:
			return true, nil
		case !errors.Is(err, ErrNotFound):
			return false, fmt.Errorf("looking for link %s: %w", name, err)
		}
	}
	return false, nil
}
