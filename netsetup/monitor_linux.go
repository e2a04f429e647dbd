package netsetup

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// minSignalInterval is the minimum time between two signals. A re-check takes some tens of
	// milliseconds, and until then the node may be without DNS.
	minSignalInterval = 100 * time.Millisecond

	// maxSignalInterval is the limit to which the interval doubles while another program removes
	// at once what a re-check restores.
	maxSignalInterval = 1600 * time.Millisecond

	// reopenDelay is the time before a failed socket is opened again. Periodic re-checks
	// continue meanwhile.
	reopenDelay = time.Second

	// receiveQueue is the size of the socket's receive buffer in bytes, enough for replacing a
	// firewall of some thousand rules. A lost message causes a re-check.
	receiveQueue = 1 << 20
)

// watchSpec names what watchRemovals watches. It is immutable.
type watchSpec struct {
	// iface is the name of an interface; "": none.
	iface string
	// addrs are the host prefixes of addresses on any interface, of both families.
	addrs []netip.Prefix
	// rules: watch our rules in nf_tables, which include the rules of iptables-nft.
	rules bool
	// routes: watch the default routes, added ones included.
	routes bool
}

// monitorSource is a subscription to multicast groups of netlink.
type monitorSource struct {
	protocol int
	groups   []int
	// isRemoval reports whether a message reports a removal.
	isRemoval func(m syscall.NetlinkMessage) bool
}

// watchRemovals returns a channel that receives a value when something in spec may have been removed.
// The receiver then checks everything. At most one value waits, and there are at least 100 ms between
// two, up to 1.6 s if they continue. Messages that the kernel dropped count as removals, and so does
// the time while a socket is reopened. There are no values without permission, without nf_tables, and
// for the rules of iptables-legacy.
//
// It does not block. The channel is closed when ctx is done and all goroutines have ended.
func watchRemovals(ctx context.Context, spec watchSpec) <-chan struct{} {
	var sources []monitorSource
	if spec.iface != "" || spec.addrs != nil {
		sources = append(sources, monitorSource{unix.NETLINK_ROUTE,
			[]int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}, spec.isInterfaceRemoval})
	}
	if spec.rules {
		sources = append(sources, monitorSource{unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, isRuleRemoval})
	}
	if spec.routes {
		sources = append(sources, monitorSource{unix.NETLINK_ROUTE,
			[]int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, isDefaultRouteChange})
	}
	removals := make(chan struct{}, 1)
	signals := make(chan struct{}, 1)
	var readers sync.WaitGroup
	for _, s := range sources {
		// Opened here, so that removals after the return are noticed.
		socket, err := s.open()
		readers.Go(func() { s.monitor(ctx, socket, err, removals) })
	}
	go func() {
		debounce(ctx, removals, signals)
		readers.Wait()
		close(signals)
	}()
	return signals
}

// open subscribes. Child processes do not inherit the socket.
func (s monitorSource) open() (*nl.NetlinkSocket, error) {
	// Without groups: if the kernel refuses them, nl.Subscribe (1.3.1) closes the file descriptor twice.
	socket, err := nl.Subscribe(s.protocol)
	if err != nil {
		return nil, err
	}
	_ = socket.SetReceiveBufferSize(receiveQueue, true) // without permission the default size is enough
	for _, group := range s.groups {
		if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			socket.Close()
			return nil, err
		}
	}
	return socket, nil
}

// monitor reports removals, lost messages included, until ctx is done.
func (s monitorSource) monitor(ctx context.Context, socket *nl.NetlinkSocket, err error, removals chan<- struct{}) {
	for messages := range s.messages(ctx, socket, err) {
		if messages == nil || slices.ContainsFunc(messages, s.isRemoval) {
			notify(removals)
		}
	}
}

// messages returns a channel that receives the messages of a socket, or of a new one after an error, which
// err may be. Nil stands for lost messages, those without a socket included. The channel and the
// socket are closed when ctx is done.
func (s monitorSource) messages(ctx context.Context, socket *nl.NetlinkSocket, err error) <-chan []syscall.NetlinkMessage {
	to := make(chan []syscall.NetlinkMessage)
	go func() {
		defer close(to)
		for {
			if err == nil {
				readMessages(ctx, socket, to)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(reopenDelay):
			}
			if socket, err = s.open(); err == nil {
				send(ctx, to, nil)
			}
		}
	}()
	return to
}

// readMessages reads until the socket fails or ctx is done, and closes the socket.
func readMessages(ctx context.Context, socket *nl.NetlinkSocket, to chan<- []syscall.NetlinkMessage) {
	end := sync.OnceFunc(socket.Close)
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	for {
		messages, _, err := socket.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		send(ctx, to, messages) // nil after ENOBUFS
	}
}

// send sends messages unless ctx is done.
func send(ctx context.Context, to chan<- []syscall.NetlinkMessage, messages []syscall.NetlinkMessage) {
	select {
	case to <- messages:
	case <-ctx.Done():
	}
}

// debounce forwards removals with a pause after each; removals during a pause are forwarded at its end.
// It returns when ctx is done.
func debounce(ctx context.Context, removals <-chan struct{}, signals chan<- struct{}) {
	pause := minSignalInterval
	for {
		quiet := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-removals:
		}
		if time.Since(quiet) < pause {
			pause = min(2*pause, maxSignalInterval)
		} else {
			pause = minSignalInterval
		}
		notify(signals)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// notify sends unless a value is waiting.
func notify(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// attrValue returns the value of the first attribute of a kind in b, after skip bytes; nil if there is
// none. The value is a slice of b.
func attrValue(b []byte, skip int, kind uint16) []byte {
	const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for k, value := range eachAttr(b[min(skip, len(b)):]) {
		if k&^flags == kind {
			return value
		}
	}
	return nil
}

// eachAttr yields the kind and the value of each attribute in b. It stops at a malformed one.
func eachAttr(b []byte) iter.Seq2[uint16, []byte] {
	const header = 4
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			length := int(nl.NativeEndian().Uint16(b))
			if length < header || length > len(b) || !yield(nl.NativeEndian().Uint16(b[2:]), b[header:length]) {
				return
			}
			b = b[min(nlAlign(length), len(b)):]
		}
	}
}

func nlAlign(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attrName returns the value of a zero-terminated attribute.
func attrName(b []byte, skip int, kind uint16) string {
	return string(bytes.TrimRight(attrValue(b, skip, kind), "\x00"))
}

// isInterfaceRemoval reports whether the interface was deleted or is down, or an address was deleted
// from any interface.
func (spec watchSpec) isInterfaceRemoval(m syscall.NetlinkMessage) bool {
	kind, body := m.Header.Type, m.Data
	switch kind {
	case unix.RTM_DELLINK, unix.RTM_NEWLINK:
		// Messages of family AF_BRIDGE are about bridge ports.
		if len(body) < unix.SizeofIfInfomsg || body[0] != unix.AF_UNSPEC || spec.iface == "" ||
			attrName(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME) != spec.iface {
			return false
		}
		up := nl.NativeEndian().Uint32(body[8:])&unix.IFF_UP != 0
		return kind == unix.RTM_DELLINK || !up
	case unix.RTM_DELADDR:
		value := attrValue(body, unix.SizeofIfAddrmsg, unix.IFA_LOCAL)
		if value == nil { // IPv6
			value = attrValue(body, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS)
		}
		addr, ok := netip.AddrFromSlice(value)
		return ok && slices.Contains(spec.addrs, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return false
}

// isRuleRemoval reports whether a table, chain or rule of ours was deleted, or another program has added an
// input chain, or a rule before ours, which may drop queries.
func isRuleRemoval(m syscall.NetlinkMessage) bool {
	const head = nl.SizeofNfgenmsg
	kind, body := m.Header.Type, m.Data
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < head {
		return false
	}
	kind = canonicalDeletion(kind & 0xff)
	switch attrName(body, head, unix.NFTA_TABLE_NAME) { // the same number in all messages
	case ownTable: // message types come in threes: add, get, delete
		return kind <= unix.NFT_MSG_DELSETELEM && kind%3 == unix.NFT_MSG_DELTABLE
	case kubeProxyTable:
		return false // changes often, and contains names of Services
	}
	return isForeignChange(kind, body[head:])
}

// isForeignChange is isRuleRemoval for a message about a table of others, without the header of nf_tables.
func isForeignChange(kind uint16, body []byte) bool {
	switch kind {
	case unix.NFT_MSG_DELCHAIN:
		name := attrName(body, 0, unix.NFTA_CHAIN_NAME)
		return name != probeChain && mentionsOurs([]byte(name)) // a failed write must not cause the next one
	case unix.NFT_MSG_DELRULE: // kube-proxy with iptables-nft, too
		return !strings.HasPrefix(attrName(body, 0, unix.NFTA_RULE_CHAIN), "KUBE-") && mentionsOurs(body)
	case unix.NFT_MSG_NEWCHAIN:
		hook := attrValue(attrValue(body, 0, unix.NFTA_CHAIN_HOOK), 0, unix.NFTA_HOOK_HOOKNUM)
		return bytes.Equal(hook, []byte{0, 0, 0, unix.NF_INET_LOCAL_IN})
	case unix.NFT_MSG_NEWRULE:
		return isEndOfFilter(body) && !mentionsOurs(body)
	}
	return false
}

// isEndOfFilter reports whether a new rule is the first or last one of INPUT or OUTPUT in table filter: the
// kernel gives the position of others.
func isEndOfFilter(body []byte) bool {
	chain := attrName(body, 0, unix.NFTA_RULE_CHAIN)
	return attrName(body, 0, unix.NFTA_RULE_TABLE) == "filter" && (chain == "INPUT" || chain == "OUTPUT") &&
		attrValue(body, 0, unix.NFTA_RULE_POSITION) == nil
}

// canonicalDeletion maps the deletions of Linux 6.3 that ignore missing objects (NFT_MSG_DESTROY...) to
// the older message types.
func canonicalDeletion(kind uint16) uint16 {
	const first, last = 26, 30 // table, chain, rule, set, element
	if kind < first || kind > last {
		return kind
	}
	return (kind-first)*3 + unix.NFT_MSG_DELTABLE
}

// mentionsOurs reports whether a rule or chain in a foreign table is ours: our texts are in its comment,
// in its chain's name, or in the name of its target.
func mentionsOurs(b []byte) bool {
	return bytes.Contains(b, []byte("nodens: DNS")) || bytes.Contains(b, []byte("NODENS-"))
}
