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

// ErrNoOwner: the kernel can't bind packet-filter rules to the life of a process.
var ErrNoOwner = errors.New("the kernel has no nf_tables, or none with tables that have an owner (Linux 5.12)")

const (
	// ownerTablePrefix begins the name of every owned table. What follows is random, as
	// two agents are there during a hand-over and in their pods both are process 1.
	ownerTablePrefix = "nodens-host-"

	// ownerTableChain is the name of the only chain of an owned table.
	ownerTableChain = "output"

	// ownerFlag is NFT_TABLE_F_OWNER: the table goes when the socket that made it is
	// closed, and nobody else can change it, nor remove it by `nft flush ruleset`.
	ownerFlag = 0x2

	// priorityRaw is before connection tracking, which is at -200; where iptables has
	// its table raw.
	priorityRaw = -300

	// ackTimeout is how long an acknowledgement may take, in seconds. The kernel has
	// written it before it returns from sending, so one second is never needed, but
	// zero would mean for ever.
	ackTimeout = 1

	// minOwnerFD is the least number of the file descriptor that owns a table. Sockets
	// of listeners are opened at the start and have lower ones on all but the largest
	// machines; a process that dies closes the highest first. So the table goes before
	// the sockets, and no query of the node meets a closed port in between. Half of it
	// is what listeners on many addresses take on 128 cores; twice as much costs the
	// kernel 8 KiB more, for the table of files, and buys nothing.
	minOwnerFD = 1024
)

// ownerTable is an nf_tables table that lives as long as its file descriptor.
type ownerTable struct {
	close func() error
}

// Close removes the table before it returns. Safe to call twice, and from any goroutine.
func (o *ownerTable) Close() error { return o.close() }

// newOwnerTable makes rules that keep queries from this node's own processes to the locals
// (UDP and TCP, port dns) away from connection tracking, and so from every translation of
// addresses. They are gone when the Closer is closed, and when the process ends, in
// whatever way: such queries can't be matched by whether somebody listens, as those of
// pods are, and without the rules they take the way to the cluster DNS.
//
// Every call makes rules of its own; those of several processes do each other no harm.
// Without locals it makes a table without rules. It may block while another program
// changes the rules, for as long as that takes. ErrNoOwner, fs.ErrPermission.
func newOwnerTable(locals []netip.Addr, dns uint16) (io.Closer, error) {
	fd, err := openOwnerSocket()
	if err != nil {
		return nil, ownerTableError("opening a netlink socket", err)
	}
	name := ownerTablePrefix + strings.ToLower(rand.Text()[:8])
	if err := sendBatch(fd, ownerTableBatch(name, locals, dns)); err != nil {
		_ = unix.Close(fd)
		return nil, ownerTableError("making the nf_tables table "+name, err)
	}
	return &ownerTable{close: sync.OnceValue(func() error { return unix.Close(fd) })}, nil
}

// openOwnerSocket returns a bound socket that programs started later don't inherit.
func openOwnerSocket() (int, error) {
	low, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, minOwnerFD)
	if err != nil { // the process may not have so many
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

// ownerTableError adds ErrNoOwner where that is the cause. EPERM is fs.ErrPermission by itself.
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

// sendBatch sends a batch and returns the kernel's verdict on it: all was done, or nothing.
func sendBatch(fd int, batch [][]byte) error {
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	if err := retryEINTR(func() error { return unix.Sendto(fd, bytes, 0, kernel) }); err != nil {
		return err
	}
	for range batch { // each is acknowledged, in their order, or the first that fails comes first
		if err := readAck(fd); err != nil {
			return err
		}
	}
	return nil
}

// readAck reads one answer of the kernel; what others send is left aside.
func readAck(fd int) error {
	// An error brings the message it is about with it, of which only the head matters.
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
		if !ok || sender.Pid != 0 || n < unix.NLMSG_HDRLEN+4 || // the kernel is number 0
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

// ownerTableBatch returns a table, a chain, and for each address and protocol a rule, as
// eachMessage that ask for an acknowledgement each.
func ownerTableBatch(name string, locals []netip.Addr, dns uint16) [][]byte {
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
	for _, l := range locals {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			batch = append(batch, batchMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_APPEND,
				attrText(unix.NFTA_RULE_TABLE, name),
				attrText(unix.NFTA_RULE_CHAIN, ownerTableChain),
				attrNest(unix.NFTA_RULE_EXPRESSIONS, exprsUntrack(l.Unmap(), protocol, dns)...)))
		}
	}
	return batch
}

// exprsUntrack returns the expressions of one rule. What most packets fail comes first.
func exprsUntrack(l netip.Addr, protocol byte, port uint16) []*nl.RtAttr {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if l.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	const portOffset = 2 // of the destination's port, in UDP and TCP
	return []*nl.RtAttr{
		exprMeta(unix.NFT_META_L4PROTO), exprEquals(protocol),
		exprPayload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, portOffset, 2), exprEquals(binary.BigEndian.AppendUint16(nil, port)...),
		exprMeta(unix.NFT_META_NFPROTO), exprEquals(family),
		exprPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, l.BitLen()/8), exprEquals(l.AsSlice()...),
		expr("notrack"),
	}
}

// exprMeta loads what the kernel knows about the packet into register 1.
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

// exprEquals ends the rule unless register 1 has these bytes.
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

// attrNumber is an attribute of 32 bits; nf_tables has them all in the order of the network.
func attrNumber(attr int, v uint32) *nl.RtAttr { return nl.NewRtAttr(attr, nl.BEUint32Attr(v)) }

// attrText is an attribute that the kernel reads up to a zero.
func attrText(attr int, s string) *nl.RtAttr { return nl.NewRtAttr(attr, nl.ZeroTerminated(s)) }

// batchMessage is one of the messages of a batch, for the family inet.
func batchMessage(kind, flags int, attrs ...*nl.RtAttr) []byte {
	m := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_CREATE|unix.NLM_F_ACK|flags)
	m.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: unix.NFNETLINK_V0})
	for _, a := range attrs {
		m.AddData(a)
	}
	return m.Serialize()
}

// batchMark is the message at either end of a batch; it names the subsystem.
func batchMark(kind int) []byte {
	m := nl.NewNetlinkRequest(kind, 0)
	m.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0, ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)})
	return m.Serialize()
}
