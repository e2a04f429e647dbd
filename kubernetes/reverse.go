package kubernetes

import (
	"bytes"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// findReverse looks up a name in a reverse zone; rel is its part before the zone.
func (z *Zone) findReverse(name, rel []byte) match {
	a, ok := parseReverse(name)
	if !ok {
		return findServer(rel)
	}
	if z.primary == nil || len(z.owners(a)) == 0 {
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
// else every endpoint that has it.
func (z *Zone) owners(a packedAddr) []owner {
	packed := string(a.bytes[:a.size])
	at := addressOf(packed)
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	x := &z.view.index
	if r, ok := x.clusterIPs[at]; ok {
		if key := z.least(r); key != "" {
			return []owner{{key: key}}
		}
	}
	r, ok := x.endpoints[at]
	if !ok {
		return nil
	}
	var list []owner
	for s := range r.each {
		if !x.services[s.key].hasEndpoints() || !z.exposes([]byte(namespaceOf(s.key))) {
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
		if (key == "" || k < key) && z.exposes([]byte(namespaceOf(k))) {
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
	for _, o := range w.zone.owners(m.addr) {
		var buf [wire.MaxName]byte
		if name := join(buf[:0], o.host, o.key, w.zone.primary.svc); name != nil {
			w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, w.ttl, name)
		}
	}
}
