// These tests use fold and sumOf, which are not exported.

package kernelpath

// Inside the package: it checks checksums and headers of frames.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// model is the program as its documentation describes it: which frames it answers, and with
// what. It parses frames with code of its own and makes replies with the agent's code.
type model struct {
	*testProgram
	known []entry
	put   map[string]entry // by replyKey
	// serial is the zone's current serial.
	serial     epoch.Value
	serialWord *uint32
}

// entry is a question and the agent's answer.
type entry struct {
	name  string
	qtype uint16
	build func(*wire.Reply)
	// counts makes TTLs count down; maxSize is the largest size in the reply's OPT.
	counts  bool
	maxSize uint16
}

// life is the value of TTLs that count down; their end is further away than that.
const life = 77

// entries returns answers of every form: one record and many, none with a denial's SOA, the
// shortest and the longest name, at even and odd offsets.
func entries(serial *uint32) []entry {
	long := strings.Repeat("a123456789b123456789c123456789d12345.", 3) // 37 bytes each
	address := func(n int) func(*wire.Reply) {
		return func(r *wire.Reply) {
			r.SetAuthoritative()
			for i := range n {
				r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, life, []byte{10, 96, 0, byte(i)})
			}
		}
	}
	denial := func(c wire.Rcode) func(*wire.Reply) {
		return func(r *wire.Reply) {
			r.SetRcode(c)
			soa := make([]byte, 22) // both names are the root
			binary.BigEndian.PutUint32(soa[2:], *serial)
			r.Add(wire.Authority, r.Suffix(1), dns.TypeSOA, life, soa)
		}
	}
	return []entry{
		{name: "web.default.svc.cluster.local.", qtype: dns.TypeA, build: address(1), maxSize: 65535},
		{name: "webs.default.svc.cluster.local.", qtype: dns.TypeA, build: address(9), counts: true, maxSize: 1232},
		{name: "web.default.svc.cluster.local.", qtype: dns.TypeAAAA, build: denial(wire.NoError), maxSize: 65535},
		{name: "web.default.svc.cluster.local.default.svc.cluster.local.", qtype: dns.TypeA, build: denial(wire.NXDomain), counts: true, maxSize: 1232},
		{name: "{a`z}.", qtype: dns.TypeA, build: address(1), maxSize: 65535}, // neighbours of the letters
		{name: ".", qtype: dns.TypeNS, build: denial(wire.NoError), maxSize: 65535},
		{name: long + "a123456789b1234.", qtype: dns.TypeA, build: address(21), counts: true, maxSize: 512}, // 128 bytes
		{name: `a\000b\255.\001.`, qtype: dns.TypeTXT, build: denial(wire.NoError), maxSize: 65535},
	}
}

// queryForms returns the variants of queries. Each has its own slot in the table.
func queryForms() []func(*dns.Msg) {
	return []func(*dns.Msg){
		func(m *dns.Msg) { m.RecursionDesired = false },
		func(*dns.Msg) {},
		func(m *dns.Msg) { m.AuthenticatedData = true },
		func(m *dns.Msg) { m.SetEdns0(1232, false) },
		func(m *dns.Msg) { m.SetEdns0(4096, true); m.CheckingDisabled = true },
	}
}

// newModel fills a table and returns all queries that are answered from it.
func newModel(t testing.TB) (m *model, queries [][]byte) {
	m = &model{testProgram: newTestProgram(t), put: make(map[string]entry), serialWord: new(uint32)}
	m.known = entries(m.serialWord)
	cluster, _ := m.Epochs()
	m.serial = cluster.AcquireValue()
	m.change(1)
	m.admit(client4.Addr(), time.Hour)
	m.admit(client6.Addr(), time.Hour)
	for i, e := range m.known {
		for _, shape := range queryForms() {
			query := ask(t, e.name, e.qtype, shape)
			a := answerTo(t, query, e.build)
			a.FromCache, a.MaxSize, a.CountsDown, a.Shuffled = i%2 != 0, e.maxSize, e.counts, false
			if e.counts {
				a.Expires, a.Ends, a.Life = clock.Now()+time.Hour, clock.Now()+2*time.Hour, life
			}
			a.Mark, a.Source = cluster.Mark(5), new(hits)
			a.Mark.Serial = m.serial.Index
			if !m.Put(a) {
				t.Fatalf("%s is not put", e.name)
			}
			var q wire.Query
			q.Parse(query)
			m.put[m.replyKey(&q)] = e
			if isPlain(&q) { // one name is in the table but never answered
				queries = append(queries, query)
			}
			if q.EDNS && i%2 == 0 {
				queries = append(queries, padded(query, 13*i))
			}
		}
	}
	return m, queries
}

// padded returns a query with n bytes of padding (RFC 7830) in its OPT record, which is last.
func padded(query []byte, n int) []byte {
	b := binary.BigEndian.AppendUint16(bytes.Clone(query[:len(query)-2]), uint16(4+n))
	b = binary.BigEndian.AppendUint16(b, 12)
	return append(binary.BigEndian.AppendUint16(b, uint16(n)), make([]byte, n)...)
}

// change sets the zone's serial.
func (m *model) change(serial uint32) {
	*m.serialWord = serial
	m.serial.Store(serial)
}

// replyKey returns what a reply depends on.
func (m *model) replyKey(q *wire.Query) string {
	return fmt.Sprintf("%x %d %v %v %v %v %v", q.Name(), q.Type, q.RD(), q.AD(), q.CD(), q.EDNS, q.EDNS && q.DO)
}

// reply returns the frame that answers in; false if in is passed on.
func (m *model) reply(in []byte) (out []byte, ok bool) {
	from, to, udp, ok := parseFrame(in)
	known := slices.Contains([]netip.AddrPort{listener4, listener6}, to) &&
		slices.Contains([]netip.Addr{client4.Addr(), client6.Addr()}, from.Addr())
	if !ok || !known || from.Port() == 0 {
		return nil, false
	}
	msg := udp[8:]
	var q wire.Query
	if len(msg) > 512 || q.Parse(msg) != wire.Serve || !isPlain(&q) {
		return nil, false
	}
	e, ok := m.put[m.replyKey(&q)]
	if !ok {
		return nil, false
	}
	q.UDPSize = min(q.UDPSize, e.maxSize) // ignored without EDNS
	var r wire.Reply
	r.Start(nil, &q)
	e.build(&r)
	out = frame(to, from, r.Finish(512))
	copy(out, in[6:12])
	copy(out[6:], in[:6])
	if to.Addr().Is4() {
		// A new packet: no traffic class, no ID, do not fragment.
		copy(out[15:26], []byte{0, out[16], out[17], 0, 0, 0x40, 0, 64, 17, 0, 0})
		binary.LittleEndian.PutUint16(out[24:], ^uint16(fold(sumOf(out[14:34], 0))))
	} else {
		copy(out[14:18], []byte{0x60, 0, 0, 0})
		out[21] = 64
	}
	m.updateChecksum(in[len(in)-len(udp):], in, out)
	return out, true
}

// updateChecksum sets out's UDP checksum: none if in has none, and wrong by the same amount
// if in's is wrong. The receiver drops such a packet as the agent's kernel would have
// dropped in.
func (m *model) updateChecksum(udp, in, out []byte) {
	at := len(in) - len(udp)
	had := binary.LittleEndian.Uint16(udp[6:])
	if had == 0 {
		binary.LittleEndian.PutUint16(out[at+6:], 0)
		return
	}
	clean := bytes.Clone(in)
	clean[at+6], clean[at+7] = 0, 0
	fault := uint32(had) + 0xFFFF - uint32(udpChecksum(clean, at))
	if fault%0xFFFF == 0 {
		return
	}
	right := binary.LittleEndian.Uint16(out[at+6:])
	binary.LittleEndian.PutUint16(out[at+6:], uint16(fold(uint32(right)+fold(fault))))
}

// parseFrame parses the headers of an ordinary frame: IPv4 without options and fragments
// (RFC 791, 3.1) or IPv6 without extension headers (RFC 8200), with UDP that fills the
// packet (RFC 768).
func parseFrame(in []byte) (from, to netip.AddrPort, udp []byte, ok bool) {
	if len(in) < 14 {
		return from, to, nil, false
	}
	var src, dst netip.Addr
	ip := in[14:]
	switch kind := binary.BigEndian.Uint16(in[12:]); {
	case kind == 0x0800 && len(ip) >= 28:
		fragment := binary.BigEndian.Uint16(ip[6:])
		ok = ip[0] == 0x45 && int(binary.BigEndian.Uint16(ip[2:])) == len(ip) && fragment&^0x4000 == 0 && ip[9] == 17
		src, dst, udp = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[20:]
	case kind == 0x86DD && len(ip) >= 48:
		ok = int(binary.BigEndian.Uint16(ip[4:])) == len(ip)-40 && ip[6] == 17
		src, dst, udp = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[40:]
		// UDP over IPv6 needs a checksum (RFC 8200, 8.1).
		ok = ok && binary.BigEndian.Uint16(udp[6:]) != 0 && !src.Is4In6() && !dst.Is4In6()
	}
	if !ok || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		return from, to, nil, false
	}
	from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp))
	to = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(udp[2:]))
	return from, to, udp, true
}

// isPlain reports whether the kernel answers this form of query: class IN, no unknown flag,
// at most an OPT record of version 0 after the question, with no flag except DO and no
// option except padding (RFC 7830), and nothing after it.
func isPlain(q *wire.Query) bool {
	p := q.Packet
	flags := binary.BigEndian.Uint16(p[2:])
	// A name with a zero byte in a label is never in the table.
	if bytes.IndexByte(q.Name(), 0) != len(q.Name())-1 {
		return false
	}
	// The class of the question, of which Query has IN for all classes.
	class := binary.BigEndian.Uint16(p[12+len(q.Name())+2:])
	if class != 1 || flags&0xFECF != 0 || binary.BigEndian.Uint16(p[6:]) != 0 || binary.BigEndian.Uint16(p[8:]) != 0 || len(q.Name()) > 128 {
		return false
	}
	rest := p[q.QuestionEnd():]
	if binary.BigEndian.Uint16(p[10:]) == 0 || !q.EDNS {
		return binary.BigEndian.Uint16(p[10:]) == 0 && len(rest) == 0
	}
	if binary.BigEndian.Uint16(p[10:]) != 1 || len(rest) != 11+int(binary.BigEndian.Uint16(rest[9:])) {
		return false
	}
	if ttl := binary.BigEndian.Uint32(rest[5:]); ttl&^0x8000 != 0 {
		return false
	}
	options := rest[11:]
	return len(options) == 0 ||
		len(options) >= 4 && binary.BigEndian.Uint16(options) == 12 && int(binary.BigEndian.Uint16(options[2:])) == len(options)-4
}
