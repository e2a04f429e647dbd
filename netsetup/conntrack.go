package netsetup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// ctSubsystem is the part of netlink that tells of connection tracking
	// (NFNL_SUBSYS_CTNETLINK), in a message's type above what is asked.
	ctSubsystem = 1 << 8
	// netfilterHeader is the length of what precedes the attributes of a message.
	netfilterHeader = 4
	// maxConntrackDeletes bounds the memory of one look, 200 bytes for each. A pod has 28,000
	// ports to ask from; twice as many flows are more than a node's pods leave in the two
	// minutes that one lives.
	maxConntrackDeletes = 1 << 16
)

// deleteConntrack has connection tracking forget the queries over UDP to a local address that it
// leads to a server that is none of these, and returns how many it were. Such a flow stays
// for two minutes, and every query from the same port is led the same way for as long: to
// a pod that is gone. kube-proxy does this for the addresses of Services; nobody does
// it for ours. TCP is left alone: its connections to a server that ends are still open.
//
// It reads the whole table, which takes tenths of a second where there are 100,000 entries.
func (k *kernelNode) deleteConntrack(locals []netip.Addr, dns uint16, servers []netip.AddrPort) (forgotten int, err error) {
	stale := func(f conntrackEntry) bool {
		return f.protocol == unix.IPPROTO_UDP && f.originalDst.Port() == dns && slices.Contains(locals, f.originalDst.Addr()) &&
			f.replySrc.Addr() != f.originalDst.Addr() && !slices.Contains(servers, f.replySrc)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(locals, func(a netip.Addr) bool { return a.Is4() == (family == unix.AF_INET) }) {
			continue
		}
		n, failed := deleteStaleEntries(family, stale)
		forgotten, err = forgotten+n, errors.Join(err, failed)
	}
	if err != nil {
		return forgotten, fmt.Errorf("having connection tracking forget servers that are gone: %w", err)
	}
	return forgotten, nil
}

// deleteStaleEntries deletes those entries of a family that are stale.
func deleteStaleEntries(family uint8, stale func(conntrackEntry) bool) (forgotten int, err error) {
	list, err := listConntrack(family, stale)
	for _, attributes := range list {
		request := newConntrackRequest(nl.IPCTNL_MSG_CT_DELETE, family, unix.NLM_F_ACK)
		request.AddRawData(attributes)
		_, failed := request.Execute(unix.NETLINK_NETFILTER, 0)
		switch {
		case failed == nil:
			forgotten++
		case !errors.Is(failed, fs.ErrNotExist): // else it has ended meanwhile
			err = errors.Join(err, failed)
		}
	}
	return forgotten, err
}

// conntrackEntry is an entry of connection tracking.
type conntrackEntry struct {
	protocol uint8
	// originalDst is where the client sends to, and answers who its packets are led to.
	originalDst, replySrc netip.AddrPort
}

func newConntrackRequest(what int, family uint8, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(ctSubsystem|what, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// listConntrack gives the attributes of the entries of a family that are wanted.
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

// parseConntrack is false for what is none.
func parseConntrack(attributes []byte) (f conntrackEntry, ok bool) {
	orig, reply := attrValue(attributes, 0, nl.CTA_TUPLE_ORIG), attrValue(attributes, 0, nl.CTA_TUPLE_REPLY)
	asked, ok := tupleEndpoint(orig, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
	answers, too := tupleEndpoint(reply, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
	protocol := attrValue(attrValue(orig, 0, nl.CTA_TUPLE_PROTO), 0, nl.CTA_PROTO_NUM)
	if !ok || !too || len(protocol) != 1 {
		return f, false
	}
	return conntrackEntry{protocol: protocol[0], originalDst: asked, replySrc: answers}, true
}

// tupleEndpoint is one of a tuple's two, by the types of its attributes.
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
