package netsetup

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoOwner: the kernel has no nf_tables tables that a process can own.
var ErrNoOwner = errors.New("the kernel has no nf_tables, or none with tables that have an owner (Linux 5.12)")

const (
	// ownerTablePrefix is the prefix of the table's name. A random suffix follows, because two
	// agents exist during a handover, and both may be process 1 of their pods.
	ownerTablePrefix = "nodens-host-"

	// ownerTableChain is the name of the table's only chain.
	ownerTableChain = "output"

	// ownerFlag is NFT_TABLE_F_OWNER: the kernel deletes the table when the socket that made it
	// is closed. No other process can change it, and `nft flush ruleset` skips it.
	ownerFlag = 0x2

	// priorityRaw is the priority of iptables' table raw, before connection tracking (-200).
	priorityRaw = -300

	// ackTimeout is how long to wait for an acknowledgement, in seconds. The kernel writes it
	// before the send returns; zero would mean no limit.
	ackTimeout = 1

	// minOwnerFD is the lowest file descriptor that may own a table. Listening sockets have
	// lower ones on all but the largest machines, and a dying process closes the highest
	// descriptors first. So the table disappears before the sockets close, and no query from
	// the node finds a closed port.
	minOwnerFD = 1024
)

// ownerTable is a table of nf_tables that exists as long as its file descriptor is open.
type ownerTable struct {
	close func() error
}

// Close deletes the table before it returns. It is safe for concurrent use and may be called twice.
func (o *ownerTable) Close() error { return o.close() }

// newOwnerTable adds rules that exempt queries from this node's own processes to the addresses (UDP
// and TCP) from connection tracking, and so from address translation. The kernel deletes them when
// the Closer is closed or the process ends, in whatever way; such queries then go to the cluster DNS.
//
// Every call adds a table of its own; tables of several processes do not conflict. Without addresses
// the table has no rules. It may block while another program changes the rules. ErrNoOwner,
// fs.ErrPermission.
func newOwnerTable(addrs []netip.Addr, dns uint16) (io.Closer, error) {
	fd, err := openOwnerSocket()
	if err != nil {
		return nil, ownerTableError("opening a netlink socket", err)
	}
	name := ownerTablePrefix + strings.ToLower(rand.Text()[:8])
	if err := sendBatch(fd, ownerTableBatch(name, addrs, dns)); err != nil {
		_ = unix.Close(fd)
		return nil, ownerTableError("making the nf_tables table "+name, err)
	}
	return &ownerTable{close: sync.OnceValue(func() error { return unix.Close(fd) })}, nil
}

// openOwnerSocket returns a bound netlink socket that child processes do not inherit.
func openOwnerSocket() (int, error) {
	low, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, minOwnerFD)
	if err != nil { // beyond the limit of open files
		fd = low
	} else {
		_ = unix.Close(low)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: ackTimeout})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ownerTableError adds ErrNoOwner if that is the cause. EPERM is fs.ErrPermission by itself.
func ownerTableError(op string, err error) error {
	for _, missing := range []unix.Errno{
		unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, // no netlink socket of this kind
		unix.EOPNOTSUPP,               // no nf_tables, or no such flag
		unix.EINVAL,                   // no such flag, in older kernels
		unix.ENOENT, unix.ENOPROTOOPT, // no such type of chain or expression
	} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%s: %w: %w", op, ErrNoOwner, err)
		}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// sendBatch sends a batch, which the kernel applies as a whole or not at all.
func sendBatch(fd int, batch [][]byte) error {
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	if err := retryEINTR(func() error { return unix.Sendto(fd, bytes, 0, kernel) }); err != nil {
		return err
	}
	for range batch { // one acknowledgement for each message, in order
		if err := readAck(fd); err != nil {
			return err
		}
	}
	return nil
}

// readAck reads one acknowledgement of the kernel and skips other messages.
func readAck(fd int) error {
	// An error repeats the message that it is about; its header is enough.
	var answer [256]byte
	for {
		var n int
		var from unix.Sockaddr
		err := retryEINTR(func() (err error) {
			n, from, err = unix.Recvfrom(fd, answer[:], 0)
			return err
		})
		if err != nil {
			return fmt.Errorf("waiting for the acknowledgement: %w", err)
		}
		sender, ok := from.(*unix.SockaddrNetlink)
		if !ok || sender.Pid != 0 || n < unix.NLMSG_HDRLEN+4 || // 0 is the kernel
			nl.NativeEndian().Uint16(answer[4:]) != unix.NLMSG_ERROR {
			continue
		}
		if code := int32(nl.NativeEndian().Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
			return unix.Errno(-code)
		}
		return nil
	}
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ownerTableBatch returns the messages that add a table, a chain, and a rule for each address and
// protocol. Each requests an acknowledgement.
func ownerTableBatch(name string, addrs []netip.Addr, dns uint16) [][]byte {
	priority := int32(priorityRaw)
	batch := [][]byte{
		batchMessage(unix.NFT_MSG_NEWTABLE, unix.NLM_F_EXCL,
			attrText(unix.NFTA_TABLE_NAME, name),
			attrNumber(unix.NFTA_TABLE_FLAGS, ownerFlag)),
		batchMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_EXCL,
			attrText(unix.NFTA_CHAIN_TABLE, name),
			attrText(unix.NFTA_CHAIN_NAME, ownerTableChain),
			attrNest(unix.NFTA_CHAIN_HOOK,
				attrNumber(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_OUT),
				attrNumber(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
			attrText(unix.NFTA_CHAIN_TYPE, "filter")),
	}
	for _, l := range addrs {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			batch = append(batch, batchMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_APPEND,
				attrText(unix.NFTA_RULE_TABLE, name),
				attrText(unix.NFTA_RULE_CHAIN, ownerTableChain),
				attrNest(unix.NFTA_RULE_EXPRESSIONS, exprsUntrack(l.Unmap(), protocol, dns)...)))
		}
	}
	return batch
}

// exprsUntrack returns the expressions of one rule, the most selective ones first.
func exprsUntrack(l netip.Addr, protocol byte, port uint16) []*nl.RtAttr {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if l.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	const portOffset = 2 // of the destination port in UDP and TCP
	return []*nl.RtAttr{
		exprMeta(unix.NFT_META_L4PROTO), exprEquals(protocol),
		exprPayload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, portOffset, 2), exprEquals(binary.BigEndian.AppendUint16(nil, port)...),
		exprMeta(unix.NFT_META_NFPROTO), exprEquals(family),
		exprPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, l.BitLen()/8), exprEquals(l.AsSlice()...),
		expr("notrack"),
	}
}

// exprMeta loads metadata of the packet into register 1.
func exprMeta(key uint32) *nl.RtAttr {
	return expr("meta", attrNumber(unix.NFTA_META_KEY, key), attrNumber(unix.NFTA_META_DREG, unix.NFT_REG_1))
}

// exprPayload loads bytes of a header into register 1.
func exprPayload(base, offset uint32, length int) *nl.RtAttr {
	return expr("payload",
		attrNumber(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
		attrNumber(unix.NFTA_PAYLOAD_BASE, base),
		attrNumber(unix.NFTA_PAYLOAD_OFFSET, offset),
		attrNumber(unix.NFTA_PAYLOAD_LEN, uint32(length)))
}

// exprEquals ends the rule unless register 1 equals value.
func exprEquals(value ...byte) *nl.RtAttr {
	return expr("cmp",
		attrNumber(unix.NFTA_CMP_SREG, unix.NFT_REG_1),
		attrNumber(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		attrNest(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, value)))
}

func expr(name string, attrs ...*nl.RtAttr) *nl.RtAttr {
	e := attrNest(unix.NFTA_LIST_ELEM, attrText(unix.NFTA_EXPR_NAME, name))
	if len(attrs) > 0 {
		e.AddChild(attrNest(unix.NFTA_EXPR_DATA, attrs...))
	}
	return e
}

func attrNest(attr int, children ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(attr|unix.NLA_F_NESTED, nil)
	for _, c := range children {
		a.AddChild(c)
	}
	return a
}

// attrNumber returns a 32-bit attribute in network byte order, as nf_tables uses.
func attrNumber(attr int, v uint32) *nl.RtAttr { return nl.NewRtAttr(attr, nl.BEUint32Attr(v)) }

// attrText returns a zero-terminated attribute.
func attrText(attr int, s string) *nl.RtAttr { return nl.NewRtAttr(attr, nl.ZeroTerminated(s)) }

// batchMessage returns a message of a batch, for family inet.
func batchMessage(kind, flags int, attrs ...*nl.RtAttr) []byte {
	m := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_CREATE|unix.NLM_F_ACK|flags)
	m.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: unix.NFNETLINK_V0})
	for _, a := range attrs {
		m.AddData(a)
	}
	return m.Serialize()
}

// batchMark returns the message at either end of a batch, which names the subsystem.
func batchMark(kind int) []byte {
	m := nl.NewNetlinkRequest(kind, 0)
	m.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0, ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)})
	return m.Serialize()
}
