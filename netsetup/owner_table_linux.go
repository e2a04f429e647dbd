package netsetup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoOwner: the kernel has no nf_tables tables that a process can own.
var ErrNoOwner = errors.New("the kernel has no nf_tables, or none with tables that have an owner (Linux 5.12)")

const (
	// ownerTableChain is the name of the table's only chain.
	ownerTableChain = "output"

	// minOwnerFD is the lowest file descriptor that may own a table. Listening sockets have
	// lower ones on all but the largest machines, and a dying process closes the highest
	// descriptors first. So the table disappears before the sockets close, and no query from
	// the node finds a closed port.
	minOwnerFD = 1024
)

// openOwnerTable implements Node. It adds rules that exempt queries from this node's own processes to the addresses (UDP
// and TCP) from connection tracking, and so from address translation. The kernel deletes them when
// the Closer is closed or the process ends, in whatever way; such queries then go to the cluster DNS.
//
// Every call adds a table of its own; tables of several processes do not conflict. Without addresses
// the table has no rules. It may block while another program changes the rules. ErrNoOwner,
// fs.ErrPermission.
func (k *kernelNode) openOwnerTable(addrs []netip.Addr, dns uint16) (io.Closer, error) {
	socket, err := openNetfilter()
	if err != nil {
		return nil, ownerTableError("opening a netlink socket", err)
	}
	defer socket.Close()
	name := ownerTablePrefix + strings.ToLower(rand.Text()[:8])
	if err := sendBatch(socket, ownerTableBatch(name, addrs, dns)); err != nil {
		return nil, ownerTableError("making the nf_tables table "+name, err)
	}
	fd, err := unix.FcntlInt(uintptr(socket.GetFd()), unix.F_DUPFD_CLOEXEC, minOwnerFD)
	if err != nil { // the limit of open files does not allow it
		fd, err = unix.FcntlInt(uintptr(socket.GetFd()), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return nil, ownerTableError("keeping the netlink socket", err)
	}
	return os.NewFile(uintptr(fd), name), nil
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

// ownerTableBatch returns the messages that add a table, a chain, and a rule for each address and
// protocol.
func ownerTableBatch(name string, addrs []netip.Addr, dns uint16) (batch [][]byte) {
	own := nftChain{family: "inet", table: name, name: ownerTableChain, kind: "filter", hook: "output", priority: nftRaw}
	batch = append(batch, nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		attrText(unix.NFTA_TABLE_NAME, name), attrNumber(unix.NFTA_TABLE_FLAGS, ownerFlag)), chainMessage(own))
	for _, a := range addrs {
		for _, proto := range []string{"udp", "tcp"} {
			rule := packetRule{family: familyOf(a.Unmap()), dst: a.Unmap(), proto: proto, dport: dns, target: "NOTRACK"}
			batch = append(batch, nftChange{addRule: &rule, in: own, last: true}.messages()...)
		}
	}
	return batch
}
