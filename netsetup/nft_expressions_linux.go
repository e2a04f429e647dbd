package netsetup

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// expressions returns the rule as expressions of nf_tables for a table of a family, in the order in
// which nft writes them: every version of nft can then print and load the rule.
func (r packetRule) expressions(family string) []*nl.RtAttr {
	e := slices.Concat(r.headerExpressions(family), r.stateExpressions())
	if r.counter {
		e = append(e, expr("counter"))
	}
	return append(e, r.verdict()...)
}

// headerExpressions returns the matches of interfaces, addresses and ports.
func (r packetRule) headerExpressions(family string) (e []*nl.RtAttr) {
	add := func(more ...*nl.RtAttr) { e = append(e, more...) }
	if r.in != "" {
		add(exprMeta(unix.NFT_META_IIFNAME), exprEquals(interfaceBytes(r.in)...))
	}
	for _, name := range r.notIn {
		add(exprMeta(unix.NFT_META_IIFNAME), exprCompare(unix.NFT_CMP_NEQ, interfaceBytes(name)...))
	}
	if family == "inet" && (r.dst.IsValid() || r.src.IsValid() || r.to.IsValid()) {
		add(exprMeta(unix.NFT_META_NFPROTO), exprEquals(familyNumbers[r.family.keyword()]))
	}
	add(exprAddr(r.dst, 16, 24)...)
	add(exprAddr(r.src, 12, 8)...)
	if r.notOut != "" {
		add(exprMeta(unix.NFT_META_OIFNAME), exprCompare(unix.NFT_CMP_NEQ, interfaceBytes(r.notOut)...))
	}
	add(exprProto(r.proto)...)
	add(exprPort(r.dport, 2)...)
	add(exprPort(r.sport, 0)...)
	return e
}

// stateExpressions returns the matches of what is not in the packet: its socket, its connection and chance.
func (r packetRule) stateExpressions() (e []*nl.RtAttr) {
	add := func(more ...*nl.RtAttr) { e = append(e, more...) }
	if r.socket {
		const key, register, transparent = 1, 2, 0 // NFTA_SOCKET_KEY, NFTA_SOCKET_DREG, NFT_SOCKET_TRANSPARENT
		add(expr("socket", attrNumber(key, transparent), attrNumber(register, unix.NFT_REG_1)), exprEquals(0))
	}
	if r.translated {
		const dnat = 1 << 5 // IPS_DST_NAT, in host byte order
		add(expr("ct", attrNumber(unix.NFTA_CT_DREG, unix.NFT_REG_1), attrNumber(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS)),
			expr("bitwise", attrNumber(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1), attrNumber(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
				attrNumber(unix.NFTA_BITWISE_LEN, 4), dataValue(unix.NFTA_BITWISE_MASK, nl.Uint32Attr(dnat)), dataValue(unix.NFTA_BITWISE_XOR, nl.Uint32Attr(0))),
			exprCompare(unix.NFT_CMP_NEQ, 0, 0, 0, 0))
	}
	if r.oneIn > 1 {
		add(expr("numgen", attrNumber(unix.NFTA_NG_DREG, unix.NFT_REG_1), attrNumber(unix.NFTA_NG_MODULUS, uint32(r.oneIn)),
			attrNumber(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)), exprEquals(0, 0, 0, 0))
	}
	return e
}

// verdict returns the expressions of the rule's target.
func (r packetRule) verdict() []*nl.RtAttr {
	load := func(register uint32, data *nl.RtAttr) *nl.RtAttr {
		return expr("immediate", attrNumber(unix.NFTA_IMMEDIATE_DREG, register), data)
	}
	switch r.target {
	case "NOTRACK":
		return []*nl.RtAttr{expr("notrack")}
	case "MASQUERADE":
		return []*nl.RtAttr{expr("masq")}
	case "DNAT":
		addr, port := r.to.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, r.to.Port())
		return []*nl.RtAttr{load(unix.NFT_REG_1, dataValue(unix.NFTA_IMMEDIATE_DATA, addr)),
			load(unix.NFT_REG_2, dataValue(unix.NFTA_IMMEDIATE_DATA, port)),
			expr("nat", attrNumber(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT),
				attrNumber(unix.NFTA_NAT_FAMILY, uint32(familyNumbers[r.family.keyword()])),
				attrNumber(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1), attrNumber(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2))}
	}
	code, final := map[string]int32{"ACCEPT": 1, "DROP": 0, "RETURN": unix.NFT_RETURN}[r.target]
	var to []*nl.RtAttr
	if !final {
		code, to = unix.NFT_JUMP, []*nl.RtAttr{attrText(unix.NFTA_VERDICT_CHAIN, nftChainName("nat", r.target))}
	}
	verdict := attrNest(unix.NFTA_DATA_VERDICT, append([]*nl.RtAttr{attrNumber(unix.NFTA_VERDICT_CODE, uint32(code))}, to...)...)
	return []*nl.RtAttr{load(unix.NFT_REG_VERDICT, attrNest(unix.NFTA_IMMEDIATE_DATA, verdict))}
}

// interfaceBytes returns a name as the kernel compares it.
func interfaceBytes(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

// exprAddr compares an address in the header, at an offset for each family; nil for no address.
func exprAddr(a netip.Addr, offset4, offset6 uint32) []*nl.RtAttr {
	if !a.IsValid() {
		return nil
	}
	if a.Is6() {
		offset4 = offset6
	}
	return []*nl.RtAttr{exprPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset4, a.BitLen()/8), exprEquals(a.AsSlice()...)}
}

// exprProto compares the transport protocol, "udp" or "tcp"; nil for none.
func exprProto(proto string) []*nl.RtAttr {
	if proto == "" {
		return nil
	}
	numbers := map[string]byte{"udp": unix.IPPROTO_UDP, "tcp": unix.IPPROTO_TCP}
	return []*nl.RtAttr{exprMeta(unix.NFT_META_L4PROTO), exprEquals(numbers[proto])}
}

// exprPort compares a port of UDP or TCP; nil for port 0.
func exprPort(port uint16, offset uint32) []*nl.RtAttr {
	if port == 0 {
		return nil
	}
	return []*nl.RtAttr{exprPayload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2), exprEquals(binary.BigEndian.AppendUint16(nil, port)...)}
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
func exprEquals(value ...byte) *nl.RtAttr { return exprCompare(unix.NFT_CMP_EQ, value...) }

// exprCompare ends the rule unless register 1 compares with value.
func exprCompare(op uint32, value ...byte) *nl.RtAttr {
	return expr("cmp", attrNumber(unix.NFTA_CMP_SREG, unix.NFT_REG_1), attrNumber(unix.NFTA_CMP_OP, op), dataValue(unix.NFTA_CMP_DATA, value))
}

func dataValue(attr int, value []byte) *nl.RtAttr {
	return attrNest(attr, nl.NewRtAttr(unix.NFTA_DATA_VALUE, value))
}

func expr(name string, attrs ...*nl.RtAttr) *nl.RtAttr {
	e := attrNest(unix.NFTA_LIST_ELEM, attrText(unix.NFTA_EXPR_NAME, name))
	if len(attrs) > 0 {
		e.AddChild(attrNest(unix.NFTA_EXPR_DATA, attrs...))
	}
	return e
}
