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
	stale := func(f conntrackEntry) bool {
		return f.protocol == unix.IPPROTO_UDP && f.originalDst.Port() == dns && slices.Contains(addrs, f.originalDst.Addr()) &&
			f.replySrc.Addr() != f.originalDst.Addr() && !slices.Contains(servers, f.replySrc)
	}
	var problems []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == (family == unix.AF_INET) }) {
			continue
		}
		list, err := listConntrack(family, stale)
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
