package netsetup

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// ownerFlag is NFT_TABLE_F_OWNER: the kernel deletes the table when the socket that made it
	// is closed. No other process can change it, and `nft flush ruleset` skips it.
	ownerFlag = 0x2

	// dormantFlag is NFT_TABLE_F_DORMANT: the table has no effect.
	dormantFlag = 0x1
)

// nftFamilies are the families of nf_tables that packets of IP pass.
var nftFamilies = map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

// nftHooks are the hooks of these families by number.
var nftHooks = []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}

// familyNumbers are the same families by name.
var familyNumbers = map[string]byte{"inet": unix.NFPROTO_INET, "ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}

// The messages of nf_tables are our own. github.com/google/nftables (0.3) can't make a table with an owner, drops
// expressions that it does not know, such as those that match by socket, and does not notice that a change has
// interrupted a dump. To list 100,000 chains or 50,000 rules it takes four times as long, and as much memory.

// listTables returns the flags of the tables of IP families by family and name, such as "inet nodens".
// errNoNftables: the kernel has no nf_tables.
func listTables() (map[string]uint32, error) {
	flags := make(map[string]uint32)
	_, err := request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, func(family byte, body []byte) (struct{}, bool) {
		flags[nftFamilies[family]+" "+attrName(body, 0, unix.NFTA_TABLE_NAME)] = attrUint32(body, unix.NFTA_TABLE_FLAGS)
		return struct{}{}, false
	})
	if isAny(err, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, // no netlink socket of this kind
		unix.EINVAL, unix.EOPNOTSUPP) { // no such subsystem
		return nil, fmt.Errorf("%w: %w", errNoNftables, err)
	}
	return flags, nftError("listing tables", err)
}

// listChains returns all base chains of IP families, and the other chains of the agent's table. It takes
// some 30 ms with 100,000 chains.
func listChains() ([]nftChain, error) {
	flags, err := listTables()
	if err != nil {
		return nil, err
	}
	list, err := request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, decodeChain)
	for i, c := range list {
		f := flags[c.family+" "+c.table]
		list[i].owned, list[i].dormant = f&ownerFlag != 0, f&dormantFlag != 0
	}
	return list, nftError("listing chains", err)
}

func decodeChain(family byte, body []byte) (c nftChain, wanted bool) {
	c.family = nftFamilies[family]
	hook := attrValue(body, 0, unix.NFTA_CHAIN_HOOK)
	c.table = attrName(body, 0, unix.NFTA_CHAIN_TABLE)
	if c.family == "" || hook == nil && c.table != ownTable {
		return c, false // most are the chains of Services
	}
	c.name, c.kind = attrName(body, 0, unix.NFTA_CHAIN_NAME), attrName(body, 0, unix.NFTA_CHAIN_TYPE)
	if n := attrUint32(hook, unix.NFTA_HOOK_HOOKNUM); hook != nil && int(n) < len(nftHooks) {
		c.hook = nftHooks[n]
	}
	c.priority = int(int32(attrUint32(hook, unix.NFTA_HOOK_PRIORITY)))
	policy := attrValue(body, 0, unix.NFTA_CHAIN_POLICY)
	c.policyDrop = len(policy) == 4 && binary.BigEndian.Uint32(policy) == 0 // NF_DROP
	return c, true
}

// listRules returns the rules of a chain; errNoChain if there is no such chain or table. It reads rules
// of any version and of any program.
func listRules(family, table, name string) ([]nftRule, error) {
	at := attrText(unix.NFTA_RULE_TABLE, table)
	rules, err := request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, familyNumbers[family], func(_ byte, body []byte) (nftRule, bool) {
		if attrName(body, 0, unix.NFTA_RULE_CHAIN) != name || attrName(body, 0, unix.NFTA_RULE_TABLE) != table {
			return nftRule{}, false // a kernel without this filter
		}
		return decodeRule(name, body), true
	}, at, attrText(unix.NFTA_RULE_CHAIN, name))
	if err == nil && len(rules) == 0 { // a dump does not tell an empty chain from none
		_, err = request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_ACK, familyNumbers[family], decodeChain, at, attrText(unix.NFTA_CHAIN_NAME, name))
		if errors.Is(err, unix.ENOENT) {
			return nil, errNoChain
		}
	}
	return rules, nftError("listing chain "+name, err)
}

// commit applies changes to nf_tables in one transaction. errRuleGone: another program has changed a
// chain since it was read, and nothing is changed.
func commit(changes []nftChange) error {
	if len(changes) == 0 {
		return nil
	}
	socket, err := openNetfilter()
	if err != nil {
		return nftError("opening a netlink socket", err)
	}
	defer socket.Close()
	var batch [][]byte
	for _, c := range changes {
		batch = append(batch, c.messages()...)
	}
	return nftError("changing nf_tables", sendBatch(socket, batch))
}

// messages returns the messages of a change.
func (c nftChange) messages() [][]byte {
	inet := byte(unix.NFPROTO_INET)
	switch {
	case c.addTable != "":
		return [][]byte{nftMessage(inet, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, attrText(unix.NFTA_TABLE_NAME, c.addTable))}
	case c.deleteTable != "":
		return [][]byte{nftMessage(inet, unix.NFT_MSG_DELTABLE, 0, attrText(unix.NFTA_TABLE_NAME, c.deleteTable))}
	case c.addChain.name != "":
		return [][]byte{chainMessage(c.addChain)}
	case c.deleteChain.name != "":
		at := c.deleteChain
		family := familyNumbers[at.family]
		return [][]byte{
			nftMessage(family, unix.NFT_MSG_DELRULE, 0, attrText(unix.NFTA_RULE_TABLE, at.table), attrText(unix.NFTA_RULE_CHAIN, at.name)),
			nftMessage(family, unix.NFT_MSG_DELCHAIN, 0, attrText(unix.NFTA_CHAIN_TABLE, at.table), attrText(unix.NFTA_CHAIN_NAME, at.name)),
		}
	}
	attrs := []*nl.RtAttr{attrText(unix.NFTA_RULE_TABLE, c.in.table), attrText(unix.NFTA_RULE_CHAIN, c.in.name)}
	if c.addRule == nil {
		attrs = append(attrs, nl.NewRtAttr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, c.deleteRule)))
		return [][]byte{nftMessage(familyNumbers[c.in.family], unix.NFT_MSG_DELRULE, 0, attrs...)}
	}
	flags := unix.NLM_F_CREATE
	if c.behind != 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.NFTA_RULE_POSITION, binary.BigEndian.AppendUint64(nil, c.behind)))
	}
	if c.behind != 0 || c.last {
		flags |= unix.NLM_F_APPEND
	}
	attrs = append(attrs, attrNest(unix.NFTA_RULE_EXPRESSIONS, c.addRule.expressions(c.in.family)...))
	if text := c.addRule.comment; text != "" {
		attrs = append(attrs, nl.NewRtAttr(unix.NFTA_RULE_USERDATA, slices.Concat([]byte{0, byte(len(text) + 1)}, []byte(text), []byte{0})))
	}
	return [][]byte{nftMessage(familyNumbers[c.in.family], unix.NFT_MSG_NEWRULE, flags, attrs...)}
}

func chainMessage(c nftChain) []byte {
	attrs := []*nl.RtAttr{attrText(unix.NFTA_CHAIN_TABLE, c.table), attrText(unix.NFTA_CHAIN_NAME, c.name)}
	if c.hook != "" {
		attrs = append(attrs, attrNest(unix.NFTA_CHAIN_HOOK,
			attrNumber(unix.NFTA_HOOK_HOOKNUM, uint32(slices.Index(nftHooks, c.hook))),
			attrNumber(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.priority)))),
			attrText(unix.NFTA_CHAIN_TYPE, c.kind),
			attrNumber(unix.NFTA_CHAIN_POLICY, 1)) // NF_ACCEPT
	}
	return nftMessage(familyNumbers[c.family], unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, attrs...)
}

// nftError adds sentinels to an error of nf_tables. EPERM is fs.ErrPermission by itself.
func nftError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w: %w", op, errRuleGone, err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY), errors.Is(err, netlink.ErrDumpInterrupted):
		return fmt.Errorf("%s: %w: %w", op, ErrLocked, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// nftMessage returns a message of nf_tables.
func nftMessage(family byte, kind, flags int, attrs ...*nl.RtAttr) []byte {
	return nftRequest(family, kind, flags, attrs...).Serialize()
}

func nftRequest(family byte, kind, flags int, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	m := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags)
	m.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: unix.NFNETLINK_V0})
	for _, a := range attrs {
		m.AddData(a)
	}
	return m
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

// probeSocketMatch reports whether nf_tables can match by socket. It changes nothing: its transaction
// ends with a message that every kernel refuses, after the rule.
func probeSocketMatch() probeResult {
	socket, err := openNetfilter()
	if err != nil {
		return unknown
	}
	defer socket.Close()
	own := nftChain{family: "inet", table: ownerTablePrefix + "probe", name: "probe", kind: "filter", hook: "prerouting", priority: nftRaw}
	table := nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, attrText(unix.NFTA_TABLE_NAME, own.table))
	rule := nftChange{addRule: &packetRule{socket: true, target: "ACCEPT"}, in: own, last: true}
	batch := append([][]byte{table, chainMessage(own)}, rule.messages()...)
	switch err := sendBatch(socket, append(batch, slices.Clone(table))); {
	case errors.Is(err, unix.EEXIST):
		return supported
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return unsupported
	}
	return unknown
}

const (
	// ackTimeout is how long to wait for the kernel, in seconds. It writes an acknowledgement
	// before the send returns; zero would mean no limit.
	ackTimeout = 1

	// sendBuffer is the size of a socket's buffer in bytes, enough for the largest batch.
	sendBuffer = 1 << 20
)

// openNetfilter returns a netlink socket that child processes do not inherit.
func openNetfilter() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(socket.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) // else the default
	return socket, socket.SetReceiveTimeout(&unix.Timeval{Sec: ackTimeout})
}

// sendBatch sends a batch, which the kernel applies as a whole or not at all. It makes the last message
// request an acknowledgement, before which the kernel reports an error of any message.
func sendBatch(socket *nl.NetlinkSocket, batch [][]byte) error {
	flags := batch[len(batch)-1][6:]
	nl.NativeEndian().PutUint16(flags, nl.NativeEndian().Uint16(flags)|unix.NLM_F_ACK)
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	if err := unix.Sendto(socket.GetFd(), bytes, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		answers, _, err := socket.Receive()
		if err != nil {
			return fmt.Errorf("waiting for the kernel: %w", err)
		}
		for _, m := range answers {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if code := int32(nl.NativeEndian().Uint32(m.Data)); code != 0 {
				return unix.Errno(-code)
			}
			return nil
		}
	}
}

// request returns what decode makes of each object in the kernel's answer to a request about nf_tables, which
// attrs may restrict. flags is NLM_F_DUMP for all objects, and else NLM_F_ACK. It asks again if a
// change has interrupted the kernel.
func request[T any](kind, flags int, family byte, decode func(family byte, body []byte) (T, bool), attrs ...*nl.RtAttr) (list []T, err error) {
	for range maxDumpTries {
		list = nil
		err = nftRequest(family, kind, flags, attrs...).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(body []byte) bool {
			if len(body) >= nl.SizeofNfgenmsg {
				if object, ok := decode(body[0], body[nl.SizeofNfgenmsg:]); ok {
					list = append(list, object)
				}
			}
			return true
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// batchMark returns the message at either end of a batch, which names the subsystem.
func batchMark(kind int) []byte {
	m := nl.NewNetlinkRequest(kind, 0)
	m.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0, ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)})
	return m.Serialize()
}

// ErrNoOwner: the kernel has no nf_tables tables that a process can own.
var ErrNoOwner = errors.New("the kernel has no nf_tables, or none with tables that have an owner (Linux 5.12)")

// minOwnerFD is the lowest file descriptor that may own a table. Listening sockets have
// lower ones on all but the largest machines, and a dying process closes the highest
// descriptors first. So the table disappears before the sockets close, and no query from
// the node finds a closed port.
const minOwnerFD = 1024

// openOwnerTable implements Node. It adds rules that exempt queries from this node's own processes to the
// addresses (UDP and TCP) from connection tracking, and so from address translation. The kernel deletes them
// when the Closer is closed or the process ends, in whatever way; such queries then go to the cluster DNS.
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
	if isAny(err, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, // no netlink socket of this kind
		unix.EOPNOTSUPP,                 // no nf_tables, or no such flag
		unix.EINVAL,                     // no such flag, in older kernels
		unix.ENOENT, unix.ENOPROTOOPT) { // no such type of chain or expression
		return fmt.Errorf("%s: %w: %w", op, ErrNoOwner, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// ownerTableBatch returns the messages that add a table, a chain, and a rule for each address and
// protocol.
func ownerTableBatch(name string, addrs []netip.Addr, dns uint16) (batch [][]byte) {
	own := nftChain{family: "inet", table: name, name: "output", kind: "filter", hook: "output", priority: nftRaw}
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
