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
	// mostPodLinks bounds what is followed, a few hundred bytes for each. A node has 110 pods
	// by default, and 2,500 where people try what it can bear; half as much could be reached,
	// and twice as much is memory for links that no node has.
	mostPodLinks = 4096

	// podLinkPause is how long news are gathered before all links are listed. A CNI plugin
	// makes, moves, names and raises a link within some tens of milliseconds: at half of it
	// most pods would cost two lists, and twice as much is longer than some programs take
	// from their start to their first query, which the agent answers until then.
	podLinkPause = 100 * time.Millisecond
)

// PodLink is the node's end of a link whose other end is a pod's: a veth whose peer is in
// another network namespace, and over which the node's default route does not lead.
type PodLink struct {
	Index int
	Name  string
}

// FollowPodLinks calls seen for every pod's link there is in this network namespace, and then
// for each that comes, and gone for each that goes, one call at a time, until ctx ends. It
// lists anew where the kernel says that news were lost. The error is why it can't follow at
// all. No privilege is needed.
//
// A link has gone when it is deleted, when it or its other end is moved so that it leads to
// no other namespace, and when the node's default route leads over it (of which there is no
// news: the next of any veth shows it). Another link of the same index is gone and then seen.
// A link that is renamed is neither, unless news were lost: gone is told the name it had
// last. What is told is some hundred milliseconds old: seen may be called for a link that is
// deleted already. The callbacks may block; what happens meanwhile is told later. Of more
// than 4,096 links the rest is left out.
func FollowPodLinks(ctx context.Context, seen, gone func(PodLink)) error {
	f := podFollower{seen: seen, gone: gone, known: make(map[int]podLink)}
	news := eventSource{protocol: unix.NETLINK_ROUTE, groups: unix.RTMGRP_LINK}
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
			f.follow(ctx, socket)
			socket.Close()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(eventRetry):
		}
		if socket, err = news.open(); err == nil {
			f.miss() // nobody looked until now
		}
	}
}

// podFollower is the state of [FollowPodLinks]. It belongs to one goroutine.
type podFollower struct {
	seen, gone func(PodLink)
	known      map[int]podLink // by index
	// due is when all links are to be listed; the zero Time while there are no news.
	due time.Time
	// lost: of some links that went no news came, so that one of the same index may be
	// another.
	lost bool
}

// follow takes news from a socket until that breaks or ctx is done.
func (f *podFollower) follow(ctx context.Context, socket *os.File) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, eventMessage)
	for {
		_ = socket.SetReadDeadline(f.due)
		if ctx.Err() != nil {
			return // whose deadline may have been replaced
		}
		n, whole, err := receiveEvents(raw, buffer)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.due = time.Time{}
			if f.list() != nil {
				f.due = time.Now().Add(eventRetry)
			}
		case errors.Is(err, unix.ENOBUFS), err == nil && !whole:
			f.miss()
		case err != nil:
			return
		default:
			f.take(buffer[:n])
		}
	}
}

// expect has all links listed soon.
func (f *podFollower) expect() {
	if f.due.IsZero() {
		f.due = time.Now().Add(podLinkPause)
	}
}

// miss notes that news were lost.
func (f *podFollower) miss() {
	f.lost = true
	f.expect()
}

// take reads a run of messages. Of a veth everything counts, as what happens to one end may
// be news of the other, of which there is no message: when a peer is moved away, say.
func (f *podFollower) take(messages []byte) {
	for kind, body := range eachMessage(messages) {
		if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || !isVeth(body) {
			continue
		}
		f.expect()
		if kind == unix.RTM_DELLINK {
			f.forget(int(nl.NativeEndian().Uint32(body[linkIndex:])))
		}
	}
}

func (f *podFollower) forget(index int) {
	if l, known := f.known[index]; known {
		delete(f.known, index)
		f.gone(l.PodLink)
	}
}

// list makes what is known equal to what there is. It fails only if there is no list; one
// that changed while it was read is used, and read again.
func (f *podFollower) list() error {
	found, err := listPodLinks()
	part := errors.Is(err, netlink.ErrDumpInterrupted)
	if err != nil && !part {
		return err
	}
	f.forgetAll(found, part)
	f.learnAll(found)
	f.lost = f.lost && part
	if part {
		f.expect()
	}
	return nil
}

// forgetAll forgets what is not found; of a part of what there is links may be missing.
func (f *podFollower) forgetAll(found map[int]podLink, part bool) {
	for _, index := range slices.Sorted(maps.Keys(f.known)) {
		now, there := found[index]
		if there && f.lost && now != f.known[index] || !there && !part {
			f.forget(index)
		}
	}
}

// learnAll learns what is found, as far as there is room.
func (f *podFollower) learnAll(found map[int]podLink) {
	for _, index := range slices.Sorted(maps.Keys(found)) {
		_, known := f.known[index]
		if !known && len(f.known) >= mostPodLinks {
			continue
		}
		f.known[index] = found[index] // its name may be new
		if !known {
			f.seen(found[index].PodLink)
		}
	}
}

// podLink is a PodLink with what tells it from a later one of the same index and name.
type podLink struct {
	PodLink
	address     string // of the hardware
	peer, space uint32 // index of the other end, and the kernel's number for its namespace
}

// linkIndex is where a message about a link has its index (struct ifinfomsg).
const linkIndex = 4

// listPodLinks returns the pods' links by index, also if the list was interrupted by a
// change, which is netlink.ErrDumpInterrupted. The kernel is asked for links of kind veth
// alone, without their statistics.
func listPodLinks() (map[int]podLink, error) {
	const withoutStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withoutStatistics)))
	kind := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	kind.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	request.AddData(kind)
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	outward := uplinks()
	found := make(map[int]podLink, len(messages))
	for _, body := range messages {
		if l, ok := readPodLink(body); ok && !slices.Contains(outward, l.Index) {
			found[l.Index] = l
		}
	}
	return found, err
}

// isVeth reports whether a message about a link, without its header, is of a veth. Those of
// the bridges, which tell that a port is one no more, say no kind.
func isVeth(body []byte) bool {
	return len(body) >= unix.SizeofIfInfomsg &&
		attrName(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO), 0, unix.IFLA_INFO_KIND) == "veth"
}

// readPodLink reads a message about a link, without its header. The kernel gives a number
// for the namespace of the other end only where that is not this one.
func readPodLink(body []byte) (l podLink, ok bool) {
	if !isVeth(body) {
		return podLink{}, false
	}
	peer := attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINK)
	space := attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_LINK_NETNSID)
	if len(peer) != 4 || len(space) != 4 {
		return podLink{}, false
	}
	return podLink{
		PodLink: PodLink{
			Index: int(nl.NativeEndian().Uint32(body[linkIndex:])),
			Name:  attrName(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME),
		},
		address: string(attrValue(body, unix.SizeofIfInfomsg, unix.IFLA_ADDRESS)),
		peer:    nl.NativeEndian().Uint32(peer),
		space:   nl.NativeEndian().Uint32(space),
	}, true
}

// uplinks are the links by which the node reaches the world. One may be a veth: that of a
// node which is itself a container, or of an agent in a pod's namespace. To answer there
// would do no harm, as only clients that the agent answers over that very link are answered,
// but every packet of the node would pay for it. The addresses asked for are of nobody
// (RFC 5737, RFC 3849), so that the default route holds for them; without one there is no
// answer.
func uplinks() (indexes []int) {
	for _, nobody := range []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")} {
		routes, _ := netlink.RouteGet(nobody)
		for _, r := range routes {
			indexes = append(indexes, r.LinkIndex)
		}
	}
	return indexes
}

// Cilium reports whether Cilium's datapath is on this node: whether one of the links that it
// makes on each is there. Its own programs on the pods' links enforce policies, and send
// packets on from where they are.
func Cilium() (bool, error) {
	for _, name := range []string{"cilium_host", "cilium_net"} {
		_, err := netlink.LinkByName(name)
		switch err = linkError(err); {
		case err == nil:
			return true, nil
		case !errors.Is(err, ErrNotFound):
			return false, fmt.Errorf("looking for link %s: %w", name, err)
		}
	}
	return false, nil
}
