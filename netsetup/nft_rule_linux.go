package netsetup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
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
	case "reject":
		d.drops = true
	case "immediate":
		told = d.verdict(data)
	case "target":
		d.target = attrName(data, 0, unix.NFTA_TARGET_NAME)
		d.drops = d.drops || d.target == "REJECT"
	case "match":
		told = d.match(data)
	default:
		d.condition(name, loaded, data)
	}
	if !told {
		d.opaque = append(append(d.opaque, name...), data...)
	}
}

// condition notes what a condition, or an expression without an effect on the verdict, means for DNS.
func (d *ruleDecoder) condition(name, loaded string, data []byte) {
	switch name {
	case "log", "bitwise", "limit", "quota", "objref", "dynset":
	case "meta":
		interfaces := []uint32{unix.NFT_META_IIF, unix.NFT_META_IIFNAME, unix.NFT_META_NFPROTO}
		d.source = false
		d.narrows(!slices.Contains(interfaces, attrUint32(data, unix.NFTA_META_KEY)))
	case "lookup":
		if bytes.Equal(attrValue(data, 0, unix.NFTA_LOOKUP_DREG), []byte{0, 0, 0, unix.NFT_REG_VERDICT}) {
			d.leads = true
		} else {
			d.narrows(d.sources)
		}
	case "payload":
		d.load(data)
	case "cmp":
		d.compare(loaded, data)
	default:
		d.narrows(true)
	}
}

func (d *ruleDecoder) narrows(narrow bool) { d.narrow = d.narrow || narrow }

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

// load notes an address that the rule loads. iptables loads fewer bytes for a network.
func (d *ruleDecoder) load(data []byte) {
	at := [2]uint32{attrUint32(data, unix.NFTA_PAYLOAD_OFFSET), attrUint32(data, unix.NFTA_PAYLOAD_LEN)}
	if attrUint32(data, unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER {
		at = [2]uint32{}
	}
	switch at {
	case [2]uint32{12, 4}, [2]uint32{8, 16}:
		d.loaded = "-s"
	case [2]uint32{16, 4}, [2]uint32{24, 16}:
		d.loaded = "-d"
	}
	d.source = at[0] == 12 && at[1] <= 4 || at[0] == 8 && at[1] > 1
	d.sources = d.sources || d.source
	d.narrows(!d.source)
}

// compare notes an address that the rule compares.
func (d *ruleDecoder) compare(loaded string, data []byte) {
	d.narrows(d.source && attrUint32(data, unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ)
	a, ok := netip.AddrFromSlice(attrValue(attrValue(data, 0, unix.NFTA_CMP_DATA), 0, unix.NFTA_DATA_VALUE))
	if ok && loaded != "" {
		d.addrs = append(d.addrs, loaded+" "+hostPrefix(a))
	}
}

// attrUint32 returns the value of a number in network byte order; 0 if there is none.
func attrUint32(b []byte, kind uint16) uint32 {
	if v := attrValue(b, 0, kind); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}
