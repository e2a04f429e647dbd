package kubernetes

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// findReverse looks up a name in a reverse zone; rel is its part before the zone.
func (z *Zone) findReverse(name, rel []byte) match {
	a, ok := parseReverse(name)
	if !ok {
		return findServer(rel)
	}
	if z.primary == nil {
		return match{}
	}
	list, known := z.owners(a)
	switch {
	case !known:
		return match{node: elsewhere}
	case len(list) == 0:
		return match{}
	}
	return match{node: reverseIP, addr: a}
}

// parseReverse reads the address of a whole reverse name (RFC 1035, 3.5; RFC 3596,
// 2.5), in lower case and wire form.
func parseReverse(name []byte) (a packedAddr, ok bool) {
	if bytes.HasSuffix(name, []byte(arpa4)) {
		return reverse4(name[:len(name)-len(arpa4)])
	}
	if bytes.HasSuffix(name, []byte(arpa6)) {
		return reverse6(name[:len(name)-len(arpa6)])
	}
	return a, false
}

func reverse4(labels []byte) (a packedAddr, ok bool) {
	for i := 3; i >= 0; i-- {
		if len(labels) == 0 || 1+int(labels[0]) > len(labels) {
			return packedAddr{}, false
		}
		n := 1 + int(labels[0])
		if a.bytes[i], ok = decimal(labels[1:n]); !ok {
			return packedAddr{}, false
		}
		labels = labels[n:]
	}
	a.size = 4
	return a, len(labels) == 0
}

// reverse6 reads 32 labels of one nibble each, the lowest first.
func reverse6(labels []byte) (a packedAddr, ok bool) {
	if len(labels) != 64 {
		return a, false
	}
	for i := range 32 {
		d, ok := hex(labels[2*i+1])
		if labels[2*i] != 1 || !ok {
			return packedAddr{}, false
		}
		a.bytes[15-i/2] |= d << (4 * (i % 2))
	}
	a.size = 16
	return a, true
}

// owner is what an address belongs to: a service, or an endpoint of one.
type owner struct {
	host string // the endpoint's label; "" is the service itself
	key  string
}

// owners lists the names of an address: the service that has it as a cluster IP,
// else every endpoint that has it. known is false if there may be others, in slices
// that are not in view.
func (z *Zone) owners(a packedAddr) (list []owner, known bool) {
	packed := string(a.bytes[:a.size])
	at := addressOf(packed)
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	x := &z.view.index
	if r, ok := x.clusterIPs[at]; ok {
		if key := z.least(r); key != "" {
			return []owner{{key: key}}, true
		}
	}
	if r, ok := x.endpoints[at]; ok {
		list = z.endpoints(r, packed)
	}
	return list, x.level == levelAll || x.level == levelWide && z.view.scope.cluster || len(list) > 0 && x.own(at)
}

// endpoints lists the names of an endpoint of the slices in r. The view's lock is
// held.
func (z *Zone) endpoints(r ref[*slice], packed string) (list []owner) {
	x := &z.view.index
	for s := range r.each {
		if !x.services[s.key].hasEndpoints() || !z.exposesLocked(namespaceOf(s.key)) {
			continue
		}
		for i := s.search(packed); i < s.len() && s.addr(i) == packed; i++ {
			o := owner{host: s.hostOf(i), key: s.key}
			if !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}
	return list
}

// hasEndpoints reports whether s, which may be nil, is a service whose endpoints
// have names.
func (s *service) hasEndpoints() bool {
	return s != nil && (s.kind == clusterIP || s.kind == headless)
}

// least is the first service key in r, by order, that z exposes: two Services have
// one address only for a moment, and the answer doesn't hang on who came first.
func (z *Zone) least(r ref[string]) (key string) {
	for k := range r.each {
		if (key == "" || k < key) && z.exposesLocked(namespaceOf(k)) {
			key = k
		}
	}
	return key
}

// each goes over what is under the address.
func (r ref[T]) each(yield func(T) bool) {
	if !yield(r.first) || r.more == nil {
		return
	}
	for _, x := range *r.more {
		if !yield(x) {
			return
		}
	}
}

// pointers writes the PTR records of m's address.
func (w *writer) pointers(m *match) {
	written := make(suffixes)
	list, _ := w.zone.owners(m.addr)
	for _, o := range list {
		w.pointer(o, written)
	}
}

// suffixes are the ends of the PTR targets in a reply that further ones point at:
// the offset of each by the part of a service's key it starts with; "" is where
// services are. A pod behind many services has many names that are alike, and
// compressed (RFC 1035, 4.1.4) they fit into a UDP answer.
type suffixes map[string]int

// pointer writes one PTR record, compressed against written.
func (w *writer) pointer(o owner, written suffixes) {
	var whole, buf [wire.MaxName]byte
	svc := w.zone.primary.svc
	if join(whole[:0], o.host, o.key, svc) == nil {
		return
	}
	b := buf[:0]
	if o.host != "" {
		b = append(b, byte(len(o.host)))
		b = append(b, o.host...)
	}
	starts := make(map[string]int, 3) // of suffixes that are written out here
	rest := o.key
	for {
		if at, ok := written[rest]; ok {
			b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(at))
			break
		}
		starts[rest] = len(b)
		if rest == "" {
			b = append(b, svc...)
			break
		}
		n := 1 + int(rest[0])
		b, rest = append(b, rest[:n]...), rest[n:]
	}
	before := w.reply.Count(wire.Answer)
	at := w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, w.ttl, b)
	if w.reply.Count(wire.Answer) == before {
		return // the message is full
	}
	for part, start := range starts {
		if at+start < maxPointed {
			written[part] = at + start
		}
	}
}

// maxPointed is the end of what a compression pointer reaches: it has 14 bits.
const maxPointed = 1 << 14
