package kubernetes

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// recordType is a type of the zones' records.
type recordType struct {
	rtype uint16
	// owner is the node that has such records; notFound if they are at several.
	owner nodeType
	// transfer yields the records of a Service for a zone transfer; owner is the Service's name. nil means that no Service has any.
	transfer func(w *recordYielder, owner []byte, s keyedService)
}

// recordTypes are the types of all records: a name has no others, and a transfer has those of each Service. The first one that a
// name has answers ANY (RFC 8482, 4.1). An alias comes first, which has no other records.
var recordTypes = [...]recordType{
	{wire.TypeCNAME, serviceName, (*recordYielder).yieldAlias},
	{wire.TypeA, notFound, func(w *recordYielder, owner []byte, s keyedService) { w.yieldAddrs(owner, s, 4) }},
	{wire.TypeAAAA, notFound, func(w *recordYielder, owner []byte, s keyedService) { w.yieldAddrs(owner, s, 16) }},
	{wire.TypePTR, reverseName, nil}, // reverse zones are not transferred
	{wire.TypeTXT, versionName, nil},
	{wire.TypeSOA, zoneApex, nil}, // see [Snapshot.SOA]
	{wire.TypeSRV, notFound, (*recordYielder).yieldSRVs},
	{wire.TypeNS, zoneApex, nil}, // see [Snapshot.All]
}

// answerWriter writes the records of one match into a reply. It is for one query.
type answerWriter struct {
	zone   *Zone
	origin *origin
	reply  *wire.Reply
	ttl    uint32
	budget *Budget
}

// enoughAddrs reports whether no more addresses need to be written. It is false until there
// are enough to choose from: the addresses are shuffled before the reply is truncated.
func (w *answerWriter) enoughAddrs() bool {
	return w.reply.Overflows() && w.reply.Count(wire.Answer) >= wire.MaxShuffled
}

// write writes m's records of qtype, if there are any. target is the name outside of the
// zone that a CNAME chain ends at, "" if it ends inside. end is the node that the chain
// ends at.
func (w *answerWriter) write(m *match, qtype uint16) (target wire.Name, end nodeType) {
	switch {
	case qtype == wire.TypeANY:
		return w.writeAny(m)
	case qtype != wire.TypeA && qtype != wire.TypeAAAA:
		w.writeOther(m, qtype)
	case m.isAlias():
		return w.writeAlias(m.svc, qtype)
	default:
		w.writeAddresses(m, wire.AtQuestion, qtype)
	}
	if m.node == zonalName && w.reply.Count(wire.Answer) == 0 {
		return "", notFound // its endpoints may not be in view yet
	}
	return "", m.node
}

// writeAny is write for the type ANY.
func (w *answerWriter) writeAny(m *match) (target wire.Name, end nodeType) {
	for _, t := range recordTypes {
		if target, end = w.write(m, t.rtype); w.reply.Count(wire.Answer) > 0 || w.budget.exhausted() {
			break
		}
	}
	return target, end
}

// writeOther writes m's records of qtype, which is no address type.
func (w *answerWriter) writeOther(m *match, qtype uint16) {
	if qtype == wire.TypeSRV {
		writeSRV(w, m)
		return
	}
	i := slices.IndexFunc(recordTypes[:], func(t recordType) bool { return t.rtype == qtype })
	if i < 0 || m.node != recordTypes[i].owner {
		return // NODATA
	}
	switch qtype {
	case wire.TypeCNAME:
		if m.isAlias() {
			w.writeName(wire.Answer, wire.TypeCNAME, wire.AtQuestion, m.svc.target)
		}
	case wire.TypePTR:
		writePTRs(w, m)
	case wire.TypeTXT:
		w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeTXT, versionTTL, []byte("\x051.1.0"))
	case wire.TypeSOA:
		w.writeSOA(wire.Answer)
	case wire.TypeNS:
		w.writeNameservers()
	}
}

// writeAddresses writes m's addresses of qtype. owner is the offset of the owner name.
func (w *answerWriter) writeAddresses(m *match, owner int, qtype uint16) {
	switch m.node {
	case portName:
		if m.svc.kind == headless {
			writeEndpointAddrs(w, m, owner, qtype)
			return
		}
		w.writeServiceAddrs(wire.Answer, owner, m.svc, qtype)
	case serviceName:
		w.writeServiceAddrs(wire.Answer, owner, m.svc, qtype)
	case endpointName, zonalName:
		writeEndpointAddrs(w, m, owner, qtype)
	case podName:
		if int(m.addr.size) == addrSize(qtype) {
			w.writeAddr(wire.Answer, owner, string(m.addr.bytes[:m.addr.size]))
		}
	case nameserverName:
		w.writeNameserverAddrs(owner, qtype)
	}
}

// writeServiceAddrs writes the addresses of a service's own name: its cluster IPs or, of a
// headless service, its endpoints.
func (w *answerWriter) writeServiceAddrs(section wire.Section, owner int, s *service, qtype uint16) {
	list, cut := s.addrs(qtype, w.budget)
	size := addrSize(qtype)
	n := len(list) / size
	if n > wire.MaxShuffled { // not all need to be written
		n = min(n, w.reply.AddrCapacity(section, qtype))
	}
	if !w.budget.spend(n) {
		return
	}
	switch {
	case s.kind != headless:
		w.reply.AddAddrs(section, owner, qtype, w.ttl, list)
		return
	case !w.zone.ordered:
		at := 0
		if section == wire.Answer && len(list)/size*(size+minAddrBytes) > w.reply.Limit() {
			at = rand.IntN(len(list)/size) * size // no room for all: choose others each time
		}
		w.reply.AddAddrs(section, owner, qtype, w.ttl, list[at:])
		if at > 0 && !w.reply.Overflows() {
			w.reply.AddAddrs(section, owner, qtype, w.ttl, list[:at])
		}
		return
	}
	zone, rest := int(cut.zoneStart)*size, int(cut.otherStart)*size
	w.writeShuffled(section, owner, qtype, list[:zone])
	w.writeShuffled(section, owner, qtype, list[zone:rest])
	w.writeShuffled(section, owner, qtype, list[rest:])
}

// minAddrBytes is the size of an address record with a compressed owner, without the address.
const minAddrBytes = 12

// writeShuffled writes addresses of qtype in random order. If the reply can't hold all of
// them, it starts at a random one.
func (w *answerWriter) writeShuffled(section wire.Section, owner int, qtype uint16, list string) {
	if list == "" {
		return
	}
	at, size := 0, addrSize(qtype)
	room := w.reply.AddrCapacity(section, qtype)
	if len(list) > room*size {
		at = rand.IntN(len(list)/size) * size // no room for all: choose others each time
	}
	n := w.reply.AddAddrs(section, owner, qtype, w.ttl, list[at:])
	if n <= room { // the first one without room marks the reply as truncated
		n += w.reply.AddAddrs(section, owner, qtype, w.ttl, list[:min(at, (room-n+1)*size)])
	}
	w.reply.ShuffleLast(n, qtype)
}

// writeAddr writes one address record; packed is its RDATA.
func (w *answerWriter) writeAddr(section wire.Section, owner int, packed string) {
	var rdata [16]byte
	n := copy(rdata[:], packed)
	qtype := wire.TypeA
	if n == 16 {
		qtype = wire.TypeAAAA
	}
	w.reply.Add(section, owner, qtype, w.ttl, rdata[:n])
}

// writeName writes a record whose RDATA is one name, and returns the offset of that name in
// the reply.
func (w *answerWriter) writeName(section wire.Section, rtype uint16, owner int, name wire.Name) int {
	var rdata [wire.MaxName]byte
	n := copy(rdata[:], name)
	return w.reply.Add(section, owner, rtype, w.ttl, rdata[:n])
}

// joinName appends a name to buf: the host label (none if host is ""), a service key, and
// svc, the name that services are below. It returns nil if the name is longer than
// [wire.MaxName].
func joinName(buf []byte, host, key string, svc wire.Name) []byte {
	if joinedLen(host, key, svc) > wire.MaxName {
		return nil
	}
	if host != "" {
		buf = append(buf, byte(len(host)))
		buf = append(buf, host...)
	}
	buf = append(buf, key...)
	return append(buf, svc...)
}

// joinedLen returns the length of the name that [joinName] builds.
func joinedLen(host, key string, svc wire.Name) int {
	n := len(key) + len(svc)
	if host != "" {
		n += 1 + len(host)
	}
	return n
}

// maxCNAMEs is the longest chain of CNAMEs within the zone that is followed, as in CoreDNS.
// A longer chain is a loop.
const maxCNAMEs = 11

// writeAlias writes the CNAME of s, a Service of type ExternalName, and follows the chain
// within the zone. As in CoreDNS, a chain that ends at a name of the zone without addresses
// writes nothing, unless the name does not exist here and `fallthrough` leaves it to the next
// steps: then it is the target.
func (w *answerWriter) writeAlias(s *service, qtype uint16) (target wire.Name, end nodeType) {
	owner := wire.AtQuestion
	end = serviceName
	var buf [wire.MaxName]byte // declared here it stays on the stack
	for range maxCNAMEs {
		owner = w.writeName(wire.Answer, wire.TypeCNAME, owner, s.target)
		if !s.target.Under(w.origin.name) {
			return s.target, serviceName
		}
		n := copy(buf[:], s.target)
		if !w.budget.spend(lookupSteps) {
			return "", notFound
		}
		m := w.zone.lookup(buf[:n], w.origin, w.budget)
		if m.isAlias() {
			s = m.svc
			continue
		}
		before := w.reply.Count(wire.Answer)
		w.writeAddresses(&m, owner, qtype)
		if w.reply.Count(wire.Answer) > before {
			return "", serviceName
		}
		if end = m.node; end == notFound && w.zone.fallsThrough(buf[:n]) {
			return s.target, serviceName
		}
		break
	}
	w.reply.Reset()
	w.reply.SetAuthoritative()
	return "", end
}

// writeSOA writes the zone's SOA. Its MNAME and RNAME end in a compression pointer to the
// zone in the question. buf holds all but an unusually long `apex`.
func (w *answerWriter) writeSOA(section wire.Section) {
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

// writeNameservers writes the NS records of the zone apex and their glue: the services that
// select the agent, or ns.dns.<zone> if there are none.
func (w *answerWriter) writeNameservers() {
	list, some := w.writeSelectingServices()
	for _, n := range list {
		w.writeServiceAddrs(wire.Additional, n.nameOffset, n.svc, wire.TypeA)
		w.writeServiceAddrs(wire.Additional, n.nameOffset, n.svc, wire.TypeAAAA)
		if w.reply.Overflows() {
			return
		}
	}
	addrs := w.zone.view.addrs
	if some || len(addrs) == 0 {
		return
	}
	owner := w.writeName(wire.Answer, wire.TypeNS, wire.AtQuestion, "\x02ns\x03dns"+w.origin.name)
	for _, a := range addrs {
		w.writeAddr(wire.Additional, owner, packAddr(a))
	}
}

// selectingService is a service that selects the agent, and the offset of its name in the
// reply.
type selectingService struct {
	nameOffset int
	svc        *service
}

// writeSelectingServices writes NS records for the services that select the agent. list has
// those whose addresses belong into the additional section; it is nil if the reply is full
// or one of the names is too long. some reports whether there are any such services.
func (w *answerWriter) writeSelectingServices() (list []selectingService, some bool) {
	base := w.origin
	if base.lacksServices() && w.zone.primary != nil {
		base = w.zone.primary
	}
	long := false
	for key, svc := range (selectingServices{w.zone.view, w.budget}).each {
		some = true
		if !w.budget.spend(lookupSteps) {
			return nil, true
		}
		var buf [wire.MaxName]byte
		name := joinName(buf[:0], "", key, base.svc)
		if name == nil {
			long = true
			continue
		}
		list = append(list, selectingService{w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeNS, w.ttl, name), svc})
		if w.reply.Overflows() {
			return nil, true
		}
	}
	if long {
		list = nil
	}
	return list, some
}

// writeNameserverAddrs writes the addresses of ns.dns: those of the services that select
// the agent, or the agent's own.
func (w *answerWriter) writeNameserverAddrs(owner int, qtype uint16) {
	some := false
	for _, svc := range (selectingServices{w.zone.view, w.budget}).each {
		some = true
		w.writeServiceAddrs(wire.Answer, owner, svc, qtype)
		if w.enoughAddrs() {
			return
		}
	}
	if some {
		return
	}
	for _, a := range w.zone.view.addrs {
		if packed := packAddr(a); len(packed) == addrSize(qtype) {
			w.writeAddr(wire.Answer, owner, packed)
		}
	}
}

// reachableAddrs returns the addresses of all that other hosts can reach: not loopback.
func reachableAddrs(all []netip.Addr) []netip.Addr {
	var list []netip.Addr
	for _, a := range all {
		if a.IsValid() && !a.IsLoopback() {
			list = append(list, a.Unmap().WithZone(""))
		}
	}
	return list
}

// writeNXDomain answers that the name does not exist.
func (w *answerWriter) writeNXDomain() {
	w.reply.SetAuthoritative()
	w.reply.SetRcode(wire.NXDomain)
	w.writeSOA(wire.Authority)
}
