package netsetup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// decodeRule decodes a rule of a chain. An expression that it does not know is part of the line's opaque
// word.
func decodeRule(chain string, body []byte) (r nftRule) {
	if h := attrValue(body, 0, unix.NFTA_RULE_HANDLE); len(h) == 8 {
		r.handle = binary.BigEndian.Uint64(h)
	}
	r.comment = userComment(attrValue(body, 0, unix.NFTA_RULE_USERDATA))
	var d ruleDecoder
	for _, e := range eachAttr(attrValue(body, 0, unix.NFTA_RULE_EXPRESSIONS)) {
		d.expression(attrName(e, 0, unix.NFTA_EXPR_NAME), attrValue(e, 0, unix.NFTA_EXPR_DATA))
	}
	r.drops, r.leads = d.drops && !d.narrow, d.leads && !d.narrow
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
	opaque          []byte
	addrs           []string // "-s 192.0.2.1/32"
	comment, target string
	loaded          string // "-s" or "-d": the register has this address
	drops, leads    bool
	narrow          bool // a condition may exclude DNS, or the rule drops what has a forged source
	source, sources bool // the register has a source address, or a part of it; sources: it had
}

// expression notes what an expression does. One that no other field tells is part of
// opaque.
func (d *ruleDecoder) expression(name string, data []byte) {
	loaded := d.loaded
	d.loaded = ""
	told := false
	switch name {
	case "counter":
		told = true
	case "log", "bitwise", "limit", "quota", "objref", "dynset":
	case "reject":
		d.drops = true
	case "immediate":
		told = d.verdict(data)
	case "target":
		d.target = attrName(data, 0, unix.NFTA_TARGET_NAME)
		d.drops = d.drops || d.target == "REJECT"
	case "match":
		told = d.match(data)
	case "meta":
		key := attrUint32(data, unix.NFTA_META_KEY)
		d.source = false
		d.narrow = d.narrow || key != unix.NFT_META_IIF && key != unix.NFT_META_IIFNAME && key != unix.NFT_META_NFPROTO
	case "lookup":
		verdict := attrValue(data, 0, unix.NFTA_LOOKUP_DREG)
		d.leads = d.leads || bytes.Equal(verdict, []byte{0, 0, 0, unix.NFT_REG_VERDICT})
		d.narrow = d.narrow || !d.leads && d.sources
	case "payload", "cmp":
		d.address(name, loaded, data)
	default:
		d.narrow = true
	}
	if !told {
		d.opaque = append(append(d.opaque, name...), data...)
	}
}

// verdict notes a verdict. told: it is a jump or an accept, of which target says everything.
func (d *ruleDecoder) verdict(data []byte) (told bool) {
	verdict := attrValue(attrValue(data, 0, unix.NFTA_IMMEDIATE_DATA), 0, unix.NFTA_DATA_VERDICT)
	code := attrValue(verdict, 0, unix.NFTA_VERDICT_CODE)
	if to := attrName(verdict, 0, unix.NFTA_VERDICT_CHAIN); to != "" {
		d.target, d.leads = to, true
		return len(code) == 4 && int32(binary.BigEndian.Uint32(code)) == unix.NFT_JUMP
	}
	if bytes.Equal(code, []byte{0, 0, 0, 1}) {
		d.target = "ACCEPT"
	}
	d.drops = d.drops || bytes.Equal(code, []byte{0, 0, 0, 0})
	return d.target == "ACCEPT"
}

// match notes a match of iptables. told: it is a comment, as versions before 1.8.8 write it.
func (d *ruleDecoder) match(data []byte) (told bool) {
	if attrName(data, 0, unix.NFTA_MATCH_NAME) != "comment" {
		d.narrow = true
		return false
	}
	d.comment = attrName(data, 0, unix.NFTA_MATCH_INFO)
	d.comment, _, _ = strings.Cut(d.comment, "\x00")
	return true
}

// address notes an address that the rule compares. iptables loads fewer bytes for a network.
func (d *ruleDecoder) address(name, loaded string, data []byte) {
	switch name {
	case "payload":
		offset, length := attrUint32(data, unix.NFTA_PAYLOAD_OFFSET), attrUint32(data, unix.NFTA_PAYLOAD_LEN)
		header := attrUint32(data, unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER
		d.source = header && (offset == 12 && length <= 4 || offset == 8 && length > 1)
		d.narrow, d.sources = d.narrow || !d.source, d.sources || d.source
		switch {
		case d.source && (length == 4 || length == 16):
			d.loaded = "-s"
		case header && (offset == 16 && length == 4 || offset == 24 && length == 16):
			d.loaded = "-d"
		}
	case "cmp":
		d.narrow = d.narrow || d.source && attrUint32(data, unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ
		a, ok := netip.AddrFromSlice(attrValue(attrValue(data, 0, unix.NFTA_CMP_DATA), 0, unix.NFTA_DATA_VALUE))
		if ok && loaded != "" {
			d.addrs = append(d.addrs, loaded+" "+hostPrefix(a))
		}
	}
}

// attrUint32 returns the value of a number in network byte order; 0 if there is none.
func attrUint32(b []byte, kind uint16) uint32 {
	if v := attrValue(b, 0, kind); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}
