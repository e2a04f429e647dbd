package fastpath

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

// model is the program as the documents have it: which frames are answered, and with what.
// It reads frames with code of its own, and has the agent's code make the reply.
type model struct {
	*testProgram
	known []entry
	put   map[string]entry // by what the reply hangs on
	// serial is what the zone's serial is at the moment.
	serial epoch.Value
	now    *uint32
}

// entry is a question with what the agent would say.
type entry struct {
	name  string
	qtype uint16
	build func(*wire.Reply)
	// counts says that TTLs count down, maxSize is the largest that the reply's OPT claims.
	counts  bool
	maxSize uint16
}

// life is what TTLs that count down stand at: they count to a time that is further away.
const life = 77

// entries are answers of every shape: one record and many, none with a denial's SOA, the
// shortest and the longest name, at even and odd places.
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
		{name: "{a`z}.", qtype: dns.TypeA, build: address(1), maxSize: 65535}, // next to letters, with another bit
		{name: ".", qtype: dns.TypeNS, build: denial(wire.NoError), maxSize: 65535},
		{name: long + "a123456789b1234.", qtype: dns.TypeA, build: address(21), counts: true, maxSize: 512}, // 128 bytes
		{name: `a\000b\255.\001.`, qtype: dns.TypeTXT, build: denial(wire.NoError), maxSize: 65535},
	}
}

// queryForms are the variants of a query that there are answers to: each goes into the table
// apart.
func queryForms() []func(*dns.Msg) {
	return []func(*dns.Msg){
		func(m *dns.Msg) { m.RecursionDesired = false },
		func(*dns.Msg) {},
		func(m *dns.Msg) { m.AuthenticatedData = true },
		func(m *dns.Msg) { m.SetEdns0(1232, false) },
		func(m *dns.Msg) { m.SetEdns0(4096, true); m.CheckingDisabled = true },
	}
}

// newModel fills a table, and gives all queries that are answered from it.
func newModel(t testing.TB) (m *model, queries [][]byte) {
	m = &model{testProgram: newTestProgram(t), put: make(map[string]entry), now: new(uint32)}
	m.known = entries(m.now)
	cluster, _ := m.Epochs()
	m.serial = cluster.AcquireValue()
	m.change(1)
	m.admit(client4.Addr(), time.Hour)
	m.admit(client6.Addr(), time.Hour)
	for i, e := range m.known {
		for _, shape := range queryForms() {
			query := ask(t, e.name, e.qtype, shape)
			a := answerTo(t, query, e.build)
			a.Cluster, a.MaxSize, a.Counts, a.Shuffled = i%2 == 0, e.maxSize, e.counts, false
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
			if isPlain(&q) { // one name is in the table in vain
				queries = append(queries, query)
			}
			if q.EDNS && i%2 == 0 {
				queries = append(queries, padded(query, 13*i))
			}
		}
	}
	return m, queries
}

// padded is a query with n bytes of padding (RFC 7830), whose OPT record stands last.
func padded(query []byte, n int) []byte {
	b := binary.BigEndian.AppendUint16(bytes.Clone(query[:len(query)-2]), uint16(4+n))
	b = binary.BigEndian.AppendUint16(b, 12)
	return append(binary.BigEndian.AppendUint16(b, uint16(n)), make([]byte, n)...)
}

// change gives the zone another serial.
func (m *model) change(serial uint32) {
	*m.now = serial
	m.serial.Store(serial)
}

// replyKey is what a reply hangs on.
func (m *model) replyKey(q *wire.Query) string {
	return fmt.Sprintf("%x %d %v %v %v %v %v", q.Name(), q.Type, q.RD(), q.AD(), q.CD(), q.EDNS, q.EDNS && q.DO)
}

// reply is the frame that answers in; false: in goes on as it is.
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
	q.UDPSize = min(q.UDPSize, e.maxSize) // of no use where there is no EDNS
	var r wire.Reply
	r.Start(nil, &q)
	e.build(&r)
	out = frame(to, from, r.Finish(512))
	copy(out, in[6:12])
	copy(out[6:], in[:6])
	if to.Addr().Is4() {
		// A packet of its own: no class of traffic, no ID, never in fragments.
		copy(out[15:26], []byte{0, out[16], out[17], 0, 0, 0x40, 0, 64, 17, 0, 0})
		binary.LittleEndian.PutUint16(out[24:], ^uint16(fold(sumOf(out[14:34], 0))))
	} else {
		copy(out[14:18], []byte{0x60, 0, 0, 0})
		out[21] = 64
	}
	m.updateChecksum(in[len(in)-len(udp):], in, out)
	return out, true
}

// updateChecksum sets the UDP checksum that out has: none if in has none, else wrong if that of in is
// wrong, by as much: who gets it throws it away, as the agent's kernel would have in.
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

// parseFrame reads the headers of a frame, if there is nothing unusual about them: IPv4
// without options, whole (RFC 791, 3.1), or IPv6 without extension headers (RFC 8200), with
// UDP behind it that fills the packet (RFC 768).
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
		// Without a checksum IPv6 has no UDP (RFC 8200, 8.1).
		ok = ok && binary.BigEndian.Uint16(udp[6:]) != 0 && !src.Is4In6() && !dst.Is4In6()
	}
	if !ok || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		return from, to, nil, false
	}
	from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp))
	to = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(udp[2:]))
	return from, to, udp, true
}

// isPlain reports whether a query is of the kind that is answered in the kernel: class IN, no
// unknown flag, nothing but an OPT record behind the question, of version 0, without flags but
// DO and with no option but one of padding (RFC 7830), and nothing behind that.
func isPlain(q *wire.Query) bool {
	p := q.Packet
	flags := binary.BigEndian.Uint16(p[2:])
	// A name that has a zero byte in a label is nobody's, and not looked for.
	if bytes.IndexByte(q.Name(), 0) != len(q.Name())-1 {
		return false
	}
	if q.Class != 1 || flags&0xFECF != 0 || binary.BigEndian.Uint16(p[6:]) != 0 || binary.BigEndian.Uint16(p[8:]) != 0 || len(q.Name()) > 128 {
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
