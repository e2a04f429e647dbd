package kubernetes

import (
	"bytes"
	"encoding/binary"

	"github.com/nodens-dns/nodens/internal/wire"
)

// parseReverse parses the address of a reverse name in lower case and wire form (RFC 1035,
// section 3.5; RFC 3596, section 2.5).
func parseReverse(name []byte) (a packedAddr, ok bool) {
	if bytes.HasSuffix(name, []byte(arpa4)) {
		return parseReverseIPv4(name[:len(name)-len(arpa4)])
	}
	if bytes.HasSuffix(name, []byte(arpa6)) {
		return parseReverseIPv6(name[:len(name)-len(arpa6)])
	}
	return a, false
}

func parseReverseIPv4(labels []byte) (a packedAddr, ok bool) {
	for i := 3; i >= 0; i-- {
		if len(labels) == 0 || 1+int(labels[0]) > len(labels) {
			return packedAddr{}, false
		}
		n := 1 + int(labels[0])
		if a.bytes[i], ok = parseOctet(labels[1:n]); !ok {
			return packedAddr{}, false
		}
		labels = labels[n:]
	}
	a.size = 4
	return a, len(labels) == 0
}

// parseReverseIPv6 parses 32 labels of one nibble each, the lowest first.
func parseReverseIPv6(labels []byte) (a packedAddr, ok bool) {
	if len(labels) != 64 {
		return a, false
	}
	for i := range 32 {
		d, ok := hexDigit(labels[2*i+1])
		if labels[2*i] != 1 || !ok {
			return packedAddr{}, false
		}
		a.bytes[15-i/2] |= d << (4 * (i % 2))
	}
	a.size = 16
	return a, true
}

// seenHosts finds hostnames that a service has at the address in several slices. A
// service's slices are visited one after the other; nearly always there is one.
type seenHosts struct {
	first      *slice // the first one of the service
	seen       map[string]struct{}
	firstHosts []string // the hostnames in first
}

// add reports whether host, which is in s, is new.
func (h *seenHosts) add(s *slice, host string) bool {
	switch {
	case h.first == nil || h.first.key != s.key:
		h.first, h.firstHosts = s, append(h.firstHosts[:0], host)
		clear(h.seen)
		return true
	case h.first == s: // a slice has no duplicates
		h.firstHosts = append(h.firstHosts, host)
		return true
	case len(h.seen) == 0:
		if h.seen == nil {
			h.seen = make(map[string]struct{})
		}
		for _, have := range h.firstHosts {
			h.seen[have] = struct{}{}
		}
	}
	_, dup := h.seen[host]
	h.seen[host] = struct{}{}
	return !dup
}

// ptrCompression holds the offsets of name suffixes in a reply that further PTR targets can
// point to (RFC 1035, section 4.1.4): the last service's key, namespaces, and the zone
// part. It makes the names of a pod behind many services fit into a UDP reply.
type ptrCompression struct {
	key        string
	keyAt      int            // 0 is none
	namespaces map[string]int // by label
	svcAt      int            // 0 is none
}

// record stores the offsets of the suffixes that the RDATA at offset at spells out, if
// pointers can reach them; -1 is a suffix that it does not.
func (p *ptrCompression) record(at int, key string, keyAt, nsAt, svcAt int) {
	if keyAt >= 0 {
		p.key, p.keyAt = key, 0
		if at+keyAt < maxPointerOffset {
			p.keyAt = at + keyAt
		}
	}
	if nsAt >= 0 && at+nsAt < maxPointerOffset {
		if p.namespaces == nil {
			p.namespaces = make(map[string]int)
		}
		p.namespaces[namespaceOf(key)] = at + nsAt
	}
	if svcAt >= 0 && at+svcAt < maxPointerOffset {
		p.svcAt = at + svcAt
	}
}

// maxPointerOffset is the limit of a compression pointer's 14 bits.
const maxPointerOffset = 1 << 14

// writePTRs writes the PTR records of m's address: the name of the service whose cluster IP
// it is, else the names of all endpoints that have it.
func writePTRs(w *answerWriter, m *match) {
	packed := string(m.addr.bytes[:m.addr.size])
	at := addrKeyOf(packed)
	var p ptrCompression
	if key := w.zone.clusterIPOwner(at, w.budget); key != "" {
		writePTR(w, &p, "", key)
		return
	}
	dashed := string(appendDashed(nil, packed))
	var hosts seenHosts
	for h := range (addrOwners{w.zone.view, at, w.zone, w.budget}).each {
		for i := h.searchAddr(packed); i < h.len() && h.addr(i) == packed; i++ {
			host := h.host(i)
			if host == "" {
				host = dashed
			}
			if !w.budget.spend(dedupSteps) {
				return
			}
			if hosts.add(h.slice, host) && !writePTR(w, &p, host, h.key) {
				return
			}
		}
	}
}

// writePTR writes one PTR record, compressed against p. It returns false if there is no
// room for more.
func writePTR(w *answerWriter, p *ptrCompression, host, key string) bool {
	svc := w.zone.primary.svc
	if !w.budget.spend(lookupSteps) {
		return false
	}
	if joinedLen(host, key, svc) > wire.MaxName {
		return true
	}
	var buf [wire.MaxName]byte
	b := buf[:0]
	if host != "" {
		b = append(b, byte(len(host)))
		b = append(b, host...)
	}
	ns := namespaceOf(key)
	keyAt, nsAt, svcAt := -1, -1, -1 // of the suffixes in this RDATA
	switch at, ok := p.namespaces[ns]; {
	case p.keyAt > 0 && p.key == key:
		b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(p.keyAt))
	case ok:
		keyAt = len(b)
		b = append(b, key[:len(key)-len(ns)]...)
		b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(at))
	default:
		keyAt, nsAt = len(b), len(b)+len(key)-len(ns)
		b = append(b, key...)
		if p.svcAt > 0 {
			b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(p.svcAt))
		} else {
			svcAt = len(b)
			b = append(b, svc...)
		}
	}
	before := w.reply.Count(wire.Answer)
	at := w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, w.ttl, b)
	if w.reply.Count(wire.Answer) == before {
		return false // the message is full
	}
	p.record(at, key, keyAt, nsAt, svcAt)
	return !w.reply.Overflows()
}
