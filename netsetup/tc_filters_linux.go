package netsetup

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Parents of filters at the qdiscs clsact and ingress (linux/pkt_sched.h).
const (
	parentIngress = 0xFFFFFFF2
	parentEgress  = 0xFFFFFFF3
)

// filterCache caches which interfaces have filters. The kernel reports changes of filters, and listing
// those of an interface with an empty clsact takes two requests.
type filterCache struct {
	known map[int]bool // by index; nil: nothing is cached
	calls int          // since the filters were listed
}

// get returns the result of filteredInterfaces, cached or new. The caller must not change the map.
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

// invalidate makes the next get list the filters.
func (f *filterCache) invalidate() { f.known = nil }

// listQdiscs returns a message for each qdisc of this network namespace.
func listQdiscs() ([][]byte, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	return messages, err
}

// filteredInterfaces returns the indexes of the interfaces that have tc filters in any direction: at
// clsact, at ingress, or at an egress qdisc. One dump lists the qdiscs of all interfaces; most have
// none. The map is nil after an error.
func filteredInterfaces(interfaces map[int]podInterface) (map[int]bool, error) {
	messages, err := listQdiscs()
	if err != nil {
		return nil, err // an interrupted dump is incomplete
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
		if filtered[index], err = hasFilters(index, filterParents(attrName(body, nl.SizeofTcMsg, nl.TCA_KIND), q.Handle)); err != nil {
			return nil, err
		}
	}
	return filtered, nil
}

// filterParents returns the possible parents of filters at a qdisc.
func filterParents(kind string, handle uint32) []uint32 {
	switch kind {
	case "clsact":
		return []uint32{parentIngress, parentEgress}
	case "ingress":
		return []uint32{parentIngress}
	}
	return []uint32{handle}
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
