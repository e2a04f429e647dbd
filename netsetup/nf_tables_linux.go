package netsetup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// ackTimeout is how long to wait for the kernel, in seconds. It writes an acknowledgement
	// before the send returns; zero would mean no limit.
	ackTimeout = 1

	// socketBuffer is the size of a socket's buffers in bytes, enough for the largest batch.
	socketBuffer = 1 << 20

	// ownerFlag is NFT_TABLE_F_OWNER: the kernel deletes the table when the socket that made it
	// is closed. No other process can change it, and `nft flush ruleset` skips it.
	ownerFlag = 0x2

	// dormantFlag is NFT_TABLE_F_DORMANT: the table has no effect.
	dormantFlag = 0x1
)

// openNetfilter returns a bound netlink socket that child processes do not inherit. Its file descriptor
// is at least minFD, where the limit of open files allows that.
func openNetfilter(minFD int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, minFD); err == nil {
		_ = unix.Close(fd)
		fd = high
	}
	for _, buffer := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} { // else the default
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer, socketBuffer)
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

// receive reads one datagram of the kernel into b.
func receive(fd int, b []byte) (n int, err error) {
	for {
		var from unix.Sockaddr
		err := retryEINTR(func() (err error) {
			n, from, err = unix.Recvfrom(fd, b, 0)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("waiting for the kernel: %w", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			return n, nil
		}
	}
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ackError returns the error in the body of an NLMSG_ERROR; nil for an acknowledgement.
func ackError(body []byte) error {
	if len(body) < 4 {
		return unix.EBADMSG
	}
	if code := int32(nl.NativeEndian().Uint32(body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// sendBatch sends a batch, which the kernel applies as a whole or not at all. It makes the last message
// request an acknowledgement, before which the kernel reports an error of any message.
func sendBatch(fd int, batch [][]byte) error {
	flags := batch[len(batch)-1][6:]
	nl.NativeEndian().PutUint16(flags, nl.NativeEndian().Uint16(flags)|unix.NLM_F_ACK)
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := retryEINTR(func() error { return unix.Sendto(fd, bytes, 0, kernel) }); err != nil {
		return err
	}
	var answer [4096]byte // an error repeats the message that it is about
	for {
		n, err := receive(fd, answer[:])
		if err != nil {
			return err
		}
		for kind, body := range eachMessage(answer[:n]) {
			if kind == unix.NLMSG_ERROR {
				return ackError(body)
			}
		}
		if n >= 6 && nl.NativeEndian().Uint16(answer[4:]) == unix.NLMSG_ERROR { // cut off
			return ackError(answer[unix.NLMSG_HDRLEN:n])
		}
	}
}

// request returns what decode makes of each object in the kernel's answer to a request about nf_tables, which
// attrs may restrict. flags is NLM_F_DUMP for all objects, and else NLM_F_ACK. It asks again if a
// change has interrupted the kernel.
func request[T any](kind, flags int, family byte, decode func(family byte, body []byte) (T, bool), attrs ...*nl.RtAttr) (list []T, err error) {
	for range maxDumpTries {
		if list, err = requestOnce(nftMessage(family, kind, flags, attrs...), decode); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return list, err
}

func requestOnce[T any](message []byte, decode func(family byte, body []byte) (T, bool)) (list []T, err error) {
	fd, err := openNetfilter(0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buffer := make([]byte, maxMessage)
	for {
		n, err := receive(fd, buffer)
		if err != nil {
			return nil, err
		}
		if n >= unix.NLMSG_HDRLEN && nl.NativeEndian().Uint16(buffer[6:])&unix.NLM_F_DUMP_INTR != 0 {
			return nil, unix.EINTR
		}
		for kind, body := range eachMessage(buffer[:n]) {
			switch {
			case kind == unix.NLMSG_DONE:
				return list, nil
			case kind == unix.NLMSG_ERROR:
				return list, ackError(body)
			case len(body) >= nl.SizeofNfgenmsg:
				if object, ok := decode(body[0], body[nl.SizeofNfgenmsg:]); ok {
					list = append(list, object)
				}
			}
		}
	}
}

// nftFamilies are the families of nf_tables that packets of IP pass.
var nftFamilies = map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

func familyNumber(name string) byte {
	for number, n := range nftFamilies {
		if n == name {
			return number
		}
	}
	return unix.NFPROTO_UNSPEC
}

// listTables returns the flags of the tables of IP families by family and name, such as "inet nodens".
// errNoNftables: the kernel has no nf_tables.
func listTables() (map[string]uint32, error) {
	flags := make(map[string]uint32)
	_, err := request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, func(family byte, body []byte) (struct{}, bool) {
		if f := attrValue(body, 0, unix.NFTA_TABLE_FLAGS); len(f) == 4 {
			flags[nftFamilies[family]+" "+attrName(body, 0, unix.NFTA_TABLE_NAME)] = binary.BigEndian.Uint32(f)
		}
		return struct{}{}, false
	})
	for _, missing := range []unix.Errno{
		unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, // no netlink socket of this kind
		unix.EINVAL, unix.EOPNOTSUPP, // no such subsystem
	} {
		if errors.Is(err, missing) {
			return nil, fmt.Errorf("%w: %w", errNoNftables, err)
		}
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
	if number := attrValue(hook, 0, unix.NFTA_HOOK_HOOKNUM); len(number) == 4 {
		names := []string{"prerouting", "input", "forward", "output", "postrouting"}
		if n := binary.BigEndian.Uint32(number); int(n) < len(names) {
			c.hook = names[n]
		}
	}
	if priority := attrValue(hook, 0, unix.NFTA_HOOK_PRIORITY); len(priority) == 4 {
		c.priority = int(int32(binary.BigEndian.Uint32(priority)))
	}
	policy := attrValue(body, 0, unix.NFTA_CHAIN_POLICY)
	c.policyDrop = len(policy) == 4 && binary.BigEndian.Uint32(policy) == 0 // NF_DROP
	return c, true
}

// listRules returns the rules of a chain; errNoChain if there is no such chain or table. It reads rules
// of any version and of any program.
func listRules(family, table, name string) ([]nftRule, error) {
	at := attrText(unix.NFTA_RULE_TABLE, table)
	rules, err := request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, familyNumber(family), func(_ byte, body []byte) (nftRule, bool) {
		if attrName(body, 0, unix.NFTA_RULE_CHAIN) != name || attrName(body, 0, unix.NFTA_RULE_TABLE) != table {
			return nftRule{}, false // a kernel without this filter
		}
		return decodeRule(name, body), true
	}, at, attrText(unix.NFTA_RULE_CHAIN, name))
	if err == nil && len(rules) == 0 { // a dump does not tell an empty chain from none
		_, err = request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_ACK, familyNumber(family), decodeChain, at, attrText(unix.NFTA_CHAIN_NAME, name))
		if errors.Is(err, unix.ENOENT) {
			return nil, errNoChain
		}
	}
	return rules, nftError("listing chain "+name, err)
}

// decodeRule decodes a rule of a chain. An expression that it does not know is part of the line's opaque
// word.
func decodeRule(chain string, body []byte) (r nftRule) {
	if h := attrValue(body, 0, unix.NFTA_RULE_HANDLE); len(h) == 8 {
		r.handle = binary.BigEndian.Uint64(h)
	}
	r.comment = userComment(attrValue(body, 0, unix.NFTA_RULE_USERDATA))
	d := ruleDecoder{unconditional: true}
	for _, e := range eachAttr(attrValue(body, 0, unix.NFTA_RULE_EXPRESSIONS)) {
		d.expression(attrName(e, 0, unix.NFTA_EXPR_NAME), attrValue(e, 0, unix.NFTA_EXPR_DATA))
	}
	r.drops = d.drops && d.unconditional
	if r.comment == "" {
		r.comment = d.comment
	}
	var w ruleWords
	w.add(true, "-A %s", chain)
	w = append(w, d.addrs...)
	w.add(len(d.opaque) > 0, "%s %.8x", strings.TrimSpace(opaqueMatch), sha256.Sum256(d.opaque))
	w.add(r.comment != "", "-m comment --comment %q", r.comment)
	w.add(d.target != "", "-j %s", d.target)
	r.line = strings.Join(w, " ")
	return r
}

// userComment returns the comment in the user data of a rule; "" if there is none.
func userComment(b []byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == 0 { // NFTNL_UDATA_RULE_COMMENT
			return strings.TrimRight(string(b[2:2+b[1]]), "\x00")
		}
		b = b[2+b[1]:]
	}
	return ""
}

// ruleDecoder reads the expressions of a rule.
type ruleDecoder struct {
	opaque               []byte
	addrs                []string // "-s 192.0.2.1/32"
	comment, target      string
	loaded               string // "-s" or "-d": the register has this address
	drops, unconditional bool
}

func (d *ruleDecoder) expression(name string, data []byte) {
	loaded := d.loaded
	d.loaded = ""
	switch name {
	case "counter":
		return
	case "log":
	case "reject":
		d.drops = true
	case "immediate":
		verdict := attrValue(attrValue(data, 0, unix.NFTA_IMMEDIATE_DATA), 0, unix.NFTA_DATA_VERDICT)
		code := attrValue(verdict, 0, unix.NFTA_VERDICT_CODE)
		if to := attrName(verdict, 0, unix.NFTA_VERDICT_CHAIN); to != "" {
			d.target, d.unconditional = to, false
			if len(code) == 4 && int32(binary.BigEndian.Uint32(code)) == unix.NFT_JUMP {
				return
			}
		}
		d.drops = d.drops || len(code) == 4 && binary.BigEndian.Uint32(code) == 0
		d.unconditional = d.unconditional && d.drops
	case "target":
		d.target = attrName(data, 0, unix.NFTA_TARGET_NAME)
		d.drops = d.drops || d.target == "REJECT"
		d.unconditional = d.unconditional && d.drops
	case "match":
		if attrName(data, 0, unix.NFTA_MATCH_NAME) == "comment" { // of iptables before 1.8.8
			d.comment = attrName(data, 0, unix.NFTA_MATCH_INFO)
			d.comment, _, _ = strings.Cut(d.comment, "\x00")
			return
		}
		d.unconditional = false
	default:
		d.unconditional = false
		d.address(name, loaded, data)
	}
	d.opaque = append(append(d.opaque, name...), data...)
}

// address notes an address that the rule compares. iptables loads fewer bytes for a network.
func (d *ruleDecoder) address(name, loaded string, data []byte) {
	switch name {
	case "payload":
		number := func(kind uint16) uint32 {
			if b := attrValue(data, 0, kind); len(b) == 4 {
				return binary.BigEndian.Uint32(b)
			}
			return 0
		}
		if number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
			switch [2]uint32{number(unix.NFTA_PAYLOAD_OFFSET), number(unix.NFTA_PAYLOAD_LEN)} {
			case [2]uint32{12, 4}, [2]uint32{8, 16}:
				d.loaded = "-s"
			case [2]uint32{16, 4}, [2]uint32{24, 16}:
				d.loaded = "-d"
			}
		}
	case "cmp":
		a, ok := netip.AddrFromSlice(attrValue(attrValue(data, 0, unix.NFTA_CMP_DATA), 0, unix.NFTA_DATA_VALUE))
		if ok && loaded != "" {
			d.addrs = append(d.addrs, loaded+" "+hostPrefix(a))
		}
	}
}

// commit applies changes to nf_tables in one transaction. errRuleGone: another program has changed a
// chain since it was read, and nothing is changed.
func commit(changes []nftChange) error {
	if len(changes) == 0 {
		return nil
	}
	fd, err := openNetfilter(0)
	if err != nil {
		return nftError("opening a netlink socket", err)
	}
	defer unix.Close(fd)
	var batch [][]byte
	for _, c := range changes {
		batch = append(batch, c.messages()...)
	}
	return nftError("changing nf_tables", sendBatch(fd, batch))
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
		family := familyNumber(at.family)
		return [][]byte{
			nftMessage(family, unix.NFT_MSG_DELRULE, 0, attrText(unix.NFTA_RULE_TABLE, at.table), attrText(unix.NFTA_RULE_CHAIN, at.name)),
			nftMessage(family, unix.NFT_MSG_DELCHAIN, 0, attrText(unix.NFTA_CHAIN_TABLE, at.table), attrText(unix.NFTA_CHAIN_NAME, at.name)),
		}
	}
	kind, flags := unix.NFT_MSG_DELRULE, 0
	attrs := []*nl.RtAttr{attrText(unix.NFTA_RULE_TABLE, c.in.table), attrText(unix.NFTA_RULE_CHAIN, c.in.name)}
	if c.addRule == nil {
		attrs = append(attrs, nl.NewRtAttr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, c.deleteRule)))
		return [][]byte{nftMessage(familyNumber(c.in.family), kind, flags, attrs...)}
	}
	kind, flags = unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE
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
	return [][]byte{nftMessage(familyNumber(c.in.family), kind, flags, attrs...)}
}

func chainMessage(c nftChain) []byte {
	attrs := []*nl.RtAttr{attrText(unix.NFTA_CHAIN_TABLE, c.table), attrText(unix.NFTA_CHAIN_NAME, c.name)}
	if c.hook != "" {
		hooks := map[string]uint32{"prerouting": unix.NF_INET_PRE_ROUTING, "output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING}
		attrs = append(attrs, attrNest(unix.NFTA_CHAIN_HOOK,
			attrNumber(unix.NFTA_HOOK_HOOKNUM, hooks[c.hook]),
			attrNumber(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.priority)))),
			attrText(unix.NFTA_CHAIN_TYPE, c.kind),
			attrNumber(unix.NFTA_CHAIN_POLICY, 1)) // NF_ACCEPT
	}
	return nftMessage(familyNumber(c.family), unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, attrs...)
}

// nftError adds sentinels to an error of nf_tables. EPERM is fs.ErrPermission by itself.
func nftError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w: %w", op, errRuleGone, err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINTR):
		return fmt.Errorf("%s: %w: %w", op, ErrLocked, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// nftMessage returns a message of nf_tables.
func nftMessage(family byte, kind, flags int, attrs ...*nl.RtAttr) []byte {
	m := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags)
	m.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: unix.NFNETLINK_V0})
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
	fd, err := openNetfilter(0)
	if err != nil {
		return unknown
	}
	defer unix.Close(fd)
	own := nftChain{family: "inet", table: ownerTablePrefix + "probe", name: "probe", kind: "filter", hook: "prerouting", priority: nftRaw}
	table := nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, attrText(unix.NFTA_TABLE_NAME, own.table))
	rule := nftChange{addRule: &packetRule{socket: true, target: "ACCEPT"}, in: own, last: true}
	batch := append([][]byte{table, chainMessage(own)}, rule.messages()...)
	switch err := sendBatch(fd, append(batch, slices.Clone(table))); {
	case errors.Is(err, unix.EEXIST):
		return supported
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return unsupported
	}
	return unknown
}
