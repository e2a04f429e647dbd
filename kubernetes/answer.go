package kubernetes

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/wire"
)

// writer writes the records of a node that was found.
type writer struct {
	zone   *Zone
	origin *origin
	reply  *wire.Reply
	ttl    uint32
	budget *Budget
}

// enoughAddrs reports whether no more addresses need be written. Those that are put in
// random order before the reply is cut are, though not all of them can stay.
func (w *writer) enoughAddrs() bool {
	return w.reply.Over() && w.reply.Count(wire.Answer) >= wire.MaxShuffled
}

// write writes m's records of qtype, if it has any. target is the name outside of
// the zone that an alias ends at, end the node that the answer ends at.
func (w *writer) write(m *match, qtype uint16) (target wire.Name, end node) {
	switch {
	case qtype != wire.TypeA && qtype != wire.TypeAAAA:
		w.other(m, qtype)
	case m.alias():
		return w.chase(m.svc, qtype)
	default:
		w.addresses(m, wire.AtQuestion, qtype)
	}
	if m.node == zonal && w.reply.Count(wire.Answer) == 0 {
		return "", missing // of a zone without endpoints some may not be in view yet
	}
	return "", m.node
}

// alias reports whether m is the name of an external service.
func (m *match) alias() bool { return m.node == named && m.svc.kind == external }

// kinds says which node has records of each type that is no address. A type that is
// not here has none: the name exists, and that is all there is to say.
var kinds = map[uint16]node{
	wire.TypeCNAME: named,
	wire.TypePTR:   reverseIP,
	wire.TypeTXT:   version,
	wire.TypeSOA:   apex,
	wire.TypeNS:    apex,
}

// other writes m's records of a type that is no address.
func (w *writer) other(m *match, qtype uint16) {
	if qtype == wire.TypeSRV {
		w.srv(m)
		return
	}
	if m.node != kinds[qtype] {
		return
	}
	switch qtype {
	case wire.TypeCNAME:
		if m.alias() {
			w.name(wire.Answer, wire.TypeCNAME, wire.AtQuestion, m.svc.target)
		}
	case wire.TypePTR:
		w.pointers(m)
	case wire.TypeTXT:
		w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeTXT, versionTTL, []byte("\x051.1.0"))
	case wire.TypeSOA:
		w.soa(wire.Answer)
	case wire.TypeNS:
		w.nameservers()
	}
}

// addresses writes m's addresses of qtype, as records of owner.
func (w *writer) addresses(m *match, owner int, qtype uint16) {
	switch m.node {
	case port:
		if m.svc.kind == headless {
			w.members(m, owner, qtype)
			return
		}
		w.packed(wire.Answer, owner, m.svc, qtype)
	case named:
		w.packed(wire.Answer, owner, m.svc, qtype)
	case member, zonal:
		w.members(m, owner, qtype)
	case podAddr:
		if int(m.addr.size) == addrSize(qtype) {
			w.addr(wire.Answer, owner, string(m.addr.bytes[:m.addr.size]))
		}
	case server:
		w.serverAddrs(owner, qtype)
	}
}

// packed writes the addresses of a service's bare name.
func (w *writer) packed(section wire.Section, owner int, s *service, qtype uint16) {
	list, cut := s.addrs(qtype, w.budget)
	size := addrSize(qtype)
	n := len(list) / size
	if n > wire.MaxShuffled { // of which not all need be written
		n = min(n, w.reply.Room(section, qtype))
	}
	if !w.budget.take(n) {
		return
	}
	if s.kind != headless || !w.zone.ordered {
		w.reply.AddAddrs(section, owner, qtype, w.ttl, list)
		return
	}
	zone, rest := int(cut.zone)*size, int(cut.rest)*size
	w.shuffled(section, owner, qtype, list[:zone])
	w.shuffled(section, owner, qtype, list[zone:rest])
	w.shuffled(section, owner, qtype, list[rest:])
}

// shuffled writes addresses of qtype in random order.
func (w *writer) shuffled(section wire.Section, owner int, qtype uint16, list string) {
	if list == "" {
		return
	}
	at, size := 0, addrSize(qtype)
	room := w.reply.Room(section, qtype)
	if len(list) > room*size {
		at = rand.IntN(len(list)/size) * size // there is no room for all: others each time
	}
	n := w.reply.AddAddrs(section, owner, qtype, w.ttl, list[at:])
	if n <= room { // with the first for which there is no room, the reply is marked as cut
		n += w.reply.AddAddrs(section, owner, qtype, w.ttl, list[:min(at, (room-n+1)*size)])
	}
	w.reply.ShuffleLast(n, qtype)
}

// addr writes one address record.
func (w *writer) addr(section wire.Section, owner int, packed string) {
	var rdata [16]byte
	n := copy(rdata[:], packed)
	qtype := wire.TypeA
	if n == 16 {
		qtype = wire.TypeAAAA
	}
	w.reply.Add(section, owner, qtype, w.ttl, rdata[:n])
}

// name writes a record whose RDATA is one name, and gives the offset of that name.
func (w *writer) name(section wire.Section, rtype uint16, owner int, name wire.Name) int {
	var rdata [wire.MaxName]byte
	n := copy(rdata[:], name)
	return w.reply.Add(section, owner, rtype, w.ttl, rdata[:n])
}

// join appends the parts to a name in buf: an endpoint's label (none if it is
// empty), a service's key, and where services are. It is nil if the name is too
// long to be one.
func join(buf []byte, host, key string, svc wire.Name) []byte {
	if nameLen(host, key, svc) > wire.MaxName {
		return nil
	}
	if host != "" {
		buf = append(buf, byte(len(host)))
		buf = append(buf, host...)
	}
	buf = append(buf, key...)
	return append(buf, svc...)
}

// nameLen is the length of what [join] gives, if it is a name.
func nameLen(host, key string, svc wire.Name) int {
	n := len(key) + len(svc)
	if host != "" {
		n += 1 + len(host)
	}
	return n
}

// maxChain is how many aliases of the zone are followed, as many as CoreDNS does.
// A chain that is longer is a loop.
const maxChain = 11

// chase writes the alias s and what it leads to inside of the zone. A chain that
// ends in no address is no alias at all, as with CoreDNS: nothing is written.
func (w *writer) chase(s *service, qtype uint16) (target wire.Name, end node) {
	owner := wire.AtQuestion
	end = named
	var buf [wire.MaxName]byte // here, where it needs no place on the heap
	for range maxChain {
		owner = w.name(wire.Answer, wire.TypeCNAME, owner, s.target)
		if !s.target.Under(w.origin.name) {
			return s.target, named
		}
		n := copy(buf[:], s.target)
		if !w.budget.take(findSteps) {
			return "", missing
		}
		m := w.zone.find(buf[:n], w.origin, w.budget)
		if m.alias() {
			s = m.svc
			continue
		}
		before := w.reply.Count(wire.Answer)
		w.addresses(&m, owner, qtype)
		if w.reply.Count(wire.Answer) > before {
			return "", named
		}
		end = m.node
		break
	}
	w.reply.Reset()
	w.reply.SetAuthoritative()
	return "", end
}

// soa writes the zone's SOA. Its names point into the question. The buffer holds all
// but those of an unusually long `apex`.
func (w *writer) soa(section wire.Section) {
	zone := w.reply.Suffix(len(w.origin.name))
	pointer := 0xC000 | uint16(zone)
	var buf [48]byte
	b := append(buf[:0], w.origin.server...)
	b = binary.BigEndian.AppendUint16(b, pointer)
	b = append(b, w.origin.mailbox...)
	b = binary.BigEndian.AppendUint16(b, pointer)
	for _, v := range [...]uint32{w.zone.view.serialOf(w.origin), 7200, 1800, 86400, w.ttl} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	w.reply.Add(section, zone, wire.TypeSOA, min(w.ttl, soaTTL), b)
}

// nameservers writes the NS of the apex: the services that select the agent, else
// ns.dns under the zone, with their addresses as glue.
func (w *writer) nameservers() {
	list, some := w.selectors()
	for _, n := range list {
		w.packed(wire.Additional, n.at, n.svc, wire.TypeA)
		w.packed(wire.Additional, n.at, n.svc, wire.TypeAAAA)
		if w.reply.Over() {
			return
		}
	}
	addrs := w.zone.view.addrs
	if some || len(addrs) == 0 {
		return
	}
	owner := w.name(wire.Answer, wire.TypeNS, wire.AtQuestion, "\x02ns\x03dns"+w.origin.name)
	for _, a := range addrs {
		w.addr(wire.Additional, owner, packAddr(a))
	}
}

// selector is a service that selects the agent, and where the reply has its name.
type selector struct {
	at  int
	svc *service
}

// selectors writes the names of the services that select the agent, and lists them if
// their addresses are to be written: if there is room, and all have names. some says that
// there are any.
func (w *writer) selectors() (list []selector, some bool) {
	base := w.origin
	if base.foreign() && w.zone.primary != nil {
		base = w.zone.primary
	}
	long := false
	for key, svc := range (selecting{w.zone.view, w.budget}).each {
		some = true
		if !w.budget.take(findSteps) {
			return nil, true
		}
		var buf [wire.MaxName]byte
		name := join(buf[:0], "", key, base.svc)
		if name == nil {
			long = true
			continue
		}
		list = append(list, selector{w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeNS, w.ttl, name), svc})
		if w.reply.Over() {
			return nil, true
		}
	}
	if long {
		list = nil
	}
	return list, some
}

// serverAddrs writes the addresses of ns.dns: those of the services that select
// the agent, else the agent's own.
func (w *writer) serverAddrs(owner int, qtype uint16) {
	some := false
	for _, svc := range (selecting{w.zone.view, w.budget}).each {
		some = true
		w.packed(wire.Answer, owner, svc, qtype)
		if w.enoughAddrs() {
			return
		}
	}
	if some {
		return
	}
	for _, a := range w.zone.view.addrs {
		if packed := packAddr(a); len(packed) == addrSize(qtype) {
			w.addr(wire.Answer, owner, packed)
		}
	}
}

// ownAddrs are the addresses others can reach the agent at: all but loopback ones.
func ownAddrs(all []netip.Addr) []netip.Addr {
	var list []netip.Addr
	for _, a := range all {
		if a.IsValid() && !a.IsLoopback() {
			list = append(list, a.Unmap().WithZone(""))
		}
	}
	return list
}
