package netsetup

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// ownTable is the table of the nftables filter, of which everything is ours.
	ownTable = "nodens"

	// minSignalInterval is the least time between two signals. A re-check takes some tens of
	// milliseconds; at half of it a program that changes things all the time would keep
	// a core busy, and twice as much is time in which a node may be without DNS.
	minSignalInterval = 100 * time.Millisecond

	// maxSignalInterval is what the pause grows to, twice as long each time, while what we
	// put back is taken away at once, as by another program that wants it gone. Longer
	// would be no better than the interval of re-checks; half as much would still spend
	// a tenth of a core on a quarrel that only people can end.
	maxSignalInterval = 1600 * time.Millisecond

	// reopenDelay is how long to wait before a socket that broke is opened again. It
	// breaks hardly ever, and the interval's re-check goes on meanwhile.
	reopenDelay = time.Second

	// receiveQueue is how many bytes of events the kernel may hold for us: a firewall of
	// some thousand rules that is replaced while no reader runs. With half of it large
	// ones cost a re-check for nothing; what is lost costs no more than that either.
	receiveQueue = 1 << 20

	// maxMessage is the largest run of messages read at once: the kernel writes 8 KiB
	// for nf_tables, and for a link with many virtual functions up to 32 KiB.
	maxMessage = 32 << 10
)

// watchSpec is what watchEvents looks out for. It is not changed while it is in use.
type watchSpec struct {
	// iface is the name of the link; "" for none.
	iface string
	// addrs are the addresses on whatever link, of both families.
	addrs []netip.Addr
	// rules: what this package has in nf_tables counts, which is also where iptables-nft
	// keeps its rules.
	rules bool
}

// monitorSource is one kind of netlink socket.
type monitorSource struct {
	protocol int
	groups   uint32
	// isRemoval says whether a message, without its header, tells of a loss.
	isRemoval func(of watchSpec, kind uint16, body []byte) bool
}

// watchRemovals tells of every moment at which something of interest may have been taken
// away, by sending on the channel it returns: what was lost before is seen by whoever looks
// after receiving. At most one signal waits, and there are at least 100 ms between two,
// more if they go on. Events that the kernel had no room for count as a loss; so does a
// time in which it could not be asked. Without permission, or without nf_tables, and for
// rules of iptables-legacy, there are no signals.
//
// It never blocks. When ctx is done the channel is closed; nothing runs on then.
func watchRemovals(ctx context.Context, of watchSpec) <-chan struct{} {
	sources := []monitorSource{{unix.NETLINK_ROUTE,
		unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR, isInterfaceRemoval}}
	if of.rules {
		sources = append(sources, monitorSource{unix.NETLINK_NETFILTER, 1 << (unix.NFNLGRP_NFTABLES - 1), isRuleRemoval})
	}
	return monitor(ctx, of, sources)
}

// monitor is watchEvents for certain sources.
func monitor(ctx context.Context, of watchSpec, sources []monitorSource) <-chan struct{} {
	losses := make(chan struct{}, 1)
	signals := make(chan struct{}, 1)
	var readers sync.WaitGroup
	for _, s := range sources {
		// Opened here, so that what is lost after our return is noticed.
		socket, err := s.open()
		readers.Go(func() { s.monitor(ctx, socket, err, of, losses) })
	}
	go func() {
		debounce(ctx, losses, signals)
		readers.Wait()
		close(signals)
	}()
	return signals
}

// open subscribes. The file is not inherited by programs started later.
func (s monitorSource) open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, s.protocol)
	if err != nil {
		return nil, err
	}
	// Without the permission to force it the usual size does.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveQueue)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: s.groups}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// monitor reads from a socket, and from those that come after it, until ctx is done.
func (s monitorSource) monitor(ctx context.Context, socket *os.File, err error, of watchSpec, losses chan<- struct{}) {
	buffer := make([]byte, maxMessage)
	for ctx.Err() == nil {
		if err == nil {
			s.readMessages(ctx, socket, buffer, of, losses)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenDelay):
		}
		if socket, err = s.open(); err == nil {
			notify(losses) // nobody looked until now
		}
	}
	if err == nil {
		socket.Close()
	}
}

// readMessages reads until the socket breaks or ctx is done, and closes the socket.
func (s monitorSource) readMessages(ctx context.Context, socket *os.File, buffer []byte, of watchSpec, losses chan<- struct{}) {
	defer socket.Close()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	for {
		n, whole, err := receiveMessages(raw, buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS), err == nil && !whole:
			notify(losses)
			continue
		case err != nil:
			return
		}
		for kind, body := range eachMessage(buffer[:n]) {
			if s.isRemoval(of, kind, body) {
				notify(losses)
				break
			}
		}
	}
}

// receiveMessages waits for a datagram. whole is false for one that the buffer was too small for.
func receiveMessages(raw interface {
	Read(f func(fd uintptr) (done bool)) error
}, buffer []byte) (n int, whole bool, err error) {
	var flags int
	waited := raw.Read(func(fd uintptr) bool {
		err = retryEINTR(func() (err error) {
			n, _, flags, _, err = unix.Recvmsg(int(fd), buffer, nil, 0)
			return err
		})
		return !errors.Is(err, unix.EAGAIN)
	})
	if waited != nil {
		return 0, false, waited
	}
	return n, flags&unix.MSG_TRUNC == 0, err
}

// debounce passes losses on, with a pause after each; what comes in a pause is passed on
// at its end. It returns when ctx is done.
func debounce(ctx context.Context, losses <-chan struct{}, signals chan<- struct{}) {
	pause := minSignalInterval
	for {
		quiet := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-losses:
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

// notify sends unless a signal waits already.
func notify(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// eachMessage walks over a run of netlink messages: type, and what comes behind the header.
// It ends at the first that makes no sense.
func eachMessage(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			length := int(nl.NativeEndian().Uint32(b))
			if length < unix.NLMSG_HDRLEN || length > len(b) {
				return
			}
			if !yield(nl.NativeEndian().Uint16(b[4:]), b[unix.NLMSG_HDRLEN:length]) {
				return
			}
			b = b[min(nlAlign(length), len(b)):]
		}
	}
}

// attrValue returns the value of the first attribute of a kind in b, which begins after
// skip bytes; nil if there is none. The value is part of b.
func attrValue(b []byte, skip int, kind uint16) []byte {
	const header, flags = 4, unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for b = b[min(skip, len(b)):]; len(b) >= header; {
		length := int(nl.NativeEndian().Uint16(b))
		if length < header || length > len(b) {
			return nil
		}
		if nl.NativeEndian().Uint16(b[2:])&^flags == kind {
			return b[header:length]
		}
		b = b[min(nlAlign(length), len(b)):]
	}
	return nil
}

func nlAlign(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attrName returns the text of an attribute, which ends with a zero.
func attrName(b []byte, skip int, kind uint16) string {
	return string(bytes.TrimRight(attrValue(b, skip, kind), "\x00"))
}

// isInterfaceRemoval: the link is gone or down, an address is gone from some link.
func isInterfaceRemoval(of watchSpec, kind uint16, body []byte) bool {
	switch kind {
	case unix.RTM_DELLINK, unix.RTM_NEWLINK:
		// Of the family of bridges come messages about ports of one.
		if len(body) < unix.SizeofIfInfomsg || body[0] != unix.AF_UNSPEC || of.iface == "" ||
			attrName(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME) != of.iface {
			return false
		}
		up := nl.NativeEndian().Uint32(body[8:])&unix.IFF_UP != 0
		return kind == unix.RTM_DELLINK || !up
	case unix.RTM_DELADDR:
		value := attrValue(body, unix.SizeofIfAddrmsg, unix.IFA_LOCAL)
		if value == nil { // IPv6 has no other
			value = attrValue(body, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS)
		}
		addr, ok := netip.AddrFromSlice(value)
		return ok && slices.Contains(of.addrs, addr)
	}
	return false
}

// isRuleRemoval: a table, a chain or a rule of ours is gone; or a chain that sees what comes
// in for this node is new or has another policy, which may keep queries from us.
func isRuleRemoval(_ watchSpec, kind uint16, body []byte) bool {
	const head = nl.SizeofNfgenmsg
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return false
	}
	kind = canonicalDeletion(kind & 0xff)
	switch attrName(body, head, unix.NFTA_TABLE_NAME) { // has this number in all messages
	case ownTable: // kinds come in threes: making, asking for, deleting
		return kind <= unix.NFT_MSG_DELSETELEM && kind%3 == unix.NFT_MSG_DELTABLE
	case "kube-proxy":
		return false // it changes all the time, and has names in it that may be any text
	}
	switch kind {
	case unix.NFT_MSG_DELCHAIN:
		return mentionsOurs(attrValue(body, head, unix.NFTA_CHAIN_NAME))
	case unix.NFT_MSG_DELRULE: // kube-proxy's way in iptables, too
		return !strings.HasPrefix(attrName(body, head, unix.NFTA_RULE_CHAIN), "KUBE-") && mentionsOurs(body)
	case unix.NFT_MSG_NEWCHAIN:
		hook := attrValue(attrValue(body, head, unix.NFTA_CHAIN_HOOK), 0, unix.NFTA_HOOK_HOOKNUM)
		return bytes.Equal(hook, []byte{0, 0, 0, unix.NF_INET_LOCAL_IN})
	}
	return false
}

// canonicalDeletion makes one of the two kinds of deletions that there are: Linux 6.3 has some in
// which it is no error if there is nothing, and announces them under their own numbers.
func canonicalDeletion(kind uint16) uint16 {
	const first, last = 26, 30 // table, chain, rule, set, element
	if kind < first || kind > last {
		return kind
	}
	return (kind-first)*3 + unix.NFT_MSG_DELTABLE
}

// mentionsOurs reports whether a rule or chain in a table of others is ours. Each of them has one
// of two texts in its comment, in the name of its chain, or of the chain it leads to.
func mentionsOurs(b []byte) bool {
	return bytes.Contains(b, []byte("nodens: DNS")) || bytes.Contains(b, []byte("NODENS-"))
}
