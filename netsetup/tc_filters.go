package netsetup

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The hooks of the qdiscs clsact and ingress, as parents of filters (linux/pkt_sched.h).
const (
	parentIngress = 0xFFFFFFF2
	parentEgress  = 0xFFFFFFF3
)

// filterCache remembers which links have filters. To ask for those of a link that has clsact
// and none takes two requests, and there are news of all filters.
type filterCache struct {
	known map[int]bool // nil: nothing is
	calls int          // since it was asked for
}

// get is filteredLinks, or what that said before. The map is not changed.
func (f *filterCache) get(links map[int]podInterface) (map[int]bool, error) {
	if f.calls++; f.known != nil && f.calls < checksPerFilterList {
		return f.known, nil
	}
	known, err := filteredInterfaces(links)
	if err != nil {
		known = nil
	}
	f.known, f.calls = known, 0
	return known, err
}

// invalidate has it be asked for again.
func (f *filterCache) invalidate() { f.known = nil }

// listQdiscs asks for all qdiscs of this network namespace.
func listQdiscs() ([][]byte, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	return messages, err
}

// filteredInterfaces returns which of the links have tc filters, in whichever direction: at the hooks
// of clsact and ingress, or at a qdisc through which packets leave. A qdisc without filters
// doesn't count. Most links have no qdisc at all, which one dump for all of them tells. After
// an error nothing is known.
func filteredInterfaces(of map[int]podInterface) (map[int]bool, error) {
	messages, err := listQdiscs()
	if err != nil {
		return nil, err // a part of them is of no use
	}
	filtered := make(map[int]bool)
	for _, body := range messages {
		if len(body) < nl.SizeofTcMsg {
			continue
		}
		q := nl.DeserializeTcMsg(body)
		index := int(q.Ifindex)
		if _, known := of[index]; !known || q.Handle == 0 || filtered[index] {
			continue
		}
		if filtered[index], err = hasFilters(index, filterParents(attrName(body, nl.SizeofTcMsg, nl.TCA_KIND), q.Handle)); err != nil {
			return nil, err
		}
	}
	return filtered, nil
}

// filterParents is where filters of a qdisc hang.
func filterParents(kind string, handle uint32) []uint32 {
	switch kind {
	case "clsact":
		return []uint32{parentIngress, parentEgress}
	case "ingress":
		return []uint32{parentIngress}
	}
	return []uint32{handle}
}

// hasFilters reports whether a link has a filter at one of the parents. A link that is gone
// has none.
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
