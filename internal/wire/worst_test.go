// These tests use questionPointer, append16 and left, which are not exported.

package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/race"
)

// worstCaseReply builds a reply to the query "a. A" whose names are as expensive as possible:
// the first record holds names with a pointer after each label, and all other names point
// there.
type worstCaseReply struct {
	b     []byte
	count uint16
	names []int // the offsets of those names, the dearest last
}

// headLen is the end of the question of a worst.
const headLen = HeaderLen + 3 + 4

// newWorstCaseReply begins a reply, with names of up to depth pointers; with none they have the
// longest labels there are.
func newWorstCaseReply(depth int) *worstCaseReply {
	w := &worstCaseReply{b: []byte{0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, 1, 0, 1}}
	w.record(questionPointer, 65280, func() {
		w.names = append(w.names, len(w.b))
		if depth == 0 {
			for range 3 {
				w.b = append(append(w.b, 63), strings.Repeat("X", 63)...)
			}
			w.b = append(append(w.b, 60), strings.Repeat("X", 60)...)
			w.b = append(w.b, 0)
			w.names = append(w.names, len(w.b))
			w.b = append16(w.b, 0xC000|uint16(w.names[0]))
			return
		}
		w.b = append(w.b, 1, 'x', 0)
		for range depth {
			at := len(w.b)
			w.b = append(w.b, 1, 'x')
			w.point()
			w.names = append(w.names, at)
		}
	})
	return w
}

// record appends a record with a compressed owner, and the RDATA that data appends.
func (w *worstCaseReply) record(owner, rtype uint16, data func()) {
	w.b = append16(w.b, owner)
	w.b = append16(w.b, rtype)
	w.b = append16(w.b, ClassIN)
	w.b = append32(w.b, 300)
	w.b = append16(w.b, 0)
	at := len(w.b)
	data()
	put16(w.b[at-2:], uint16(len(w.b)-at))
	w.count++
	put16(w.b[6:], w.count)
}

// owner is a pointer to one of the dearest names, never the one of the record before.
func (w *worstCaseReply) owner() uint16 {
	return 0xC000 | uint16(w.names[len(w.names)-1-int(w.count)%min(2, len(w.names))])
}

// point appends a pointer to the dearest name.
func (w *worstCaseReply) point() { w.b = append16(w.b, 0xC000|uint16(w.names[len(w.names)-1])) }

// worstShapes are replies that are dear to read, each in another way: what they begin
// with, and what each of their records is.
var worstShapes = []struct {
	name       string
	begin, one func(*worstCaseReply)
	plain      bool // it points to little
}{
	{name: "owners", one: func(w *worstCaseReply) { w.record(w.owner(), TypeA, func() { w.b = append(w.b, 192, 0, 2, 1) }) }},
	{name: "RDATA", one: func(w *worstCaseReply) { w.record(questionPointer, TypePTR, w.point) }},
	{name: "owners and RDATA", one: func(w *worstCaseReply) { w.record(w.owner(), TypePTR, w.point) }},
	{name: "two names in RDATA", one: func(w *worstCaseReply) { w.record(w.owner(), 17, func() { w.point(); w.point() }) }},
	{
		name: "behind sixteen aliases",
		begin: func(w *worstCaseReply) {
			next := questionPointer
			for i := range byte(maxChain) {
				w.record(uint16(next), TypeCNAME, func() {
					next = 0xC000 | len(w.b)
					for range 3 { // as long as the owners, nearly to their ends
						w.b = append(append(w.b, 63), strings.Repeat("x", 63)...)
					}
					w.b = append(append(append(w.b, 60), strings.Repeat("x", 59)...), 'a'+i, 0)
				})
			}
		},
		one: func(w *worstCaseReply) { w.record(w.owner(), TypePTR, w.point) },
	},
	{
		name: "aliases in a circle", begin: func(w *worstCaseReply) {
			w.record(questionPointer, TypeCNAME, func() { w.b = append16(w.b, questionPointer) })
		},
		one: func(w *worstCaseReply) { w.record(w.owner(), TypePTR, w.point) },
	},
	{name: "aliases of one name", one: func(w *worstCaseReply) { w.record(questionPointer, TypeCNAME, w.point) }},
	{name: "RDATA of objects", one: func(w *worstCaseReply) {
		w.record(questionPointer, 47, func() { w.point(); w.b = append(w.b, 0, 1, 0x40) })
	}},
	{name: "many names in RDATA", one: func(w *worstCaseReply) {
		w.record(questionPointer, typeHIP, func() {
			w.b = append(w.b, 0, 0, 0, 0)
			for range 100 {
				w.point()
			}
		})
	}},
	{
		name: "a rare shape",
		begin: func(w *worstCaseReply) { // an owner that the question could stand for
			w.b = append(w.b, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
			w.count++
		},
		one: func(w *worstCaseReply) { w.record(w.owner(), TypePTR, w.point) },
	},
	{
		name: "a rare shape with one owner",
		begin: func(w *worstCaseReply) {
			w.b = append(w.b, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
			w.count++
		},
		one: func(w *worstCaseReply) {
			w.record(0xC000|uint16(w.names[len(w.names)-1]), TypePTR, func() { w.b = append(w.b, 1, byte(w.count), 0) })
		},
		plain: true,
	},
}

// worstReply is the i-th shape with n records at most, in size bytes at most.
func worstReply(i, depth, size, n int) []byte {
	w := newWorstCaseReply(depth)
	if begin := worstShapes[i].begin; begin != nil {
		begin(w)
	}
	for range n {
		end, count := len(w.b), w.count
		if worstShapes[i].one(w); len(w.b) > size {
			w.b = w.b[:end]
			put16(w.b[6:], count)
			break
		}
	}
	return w.b
}

// longestAccepted returns the longest accepted worstReply of at most size bytes.
func longestAccepted(q *Query, i, depth, size int) []byte {
	low, high := 0, MaxMessage/14
	for low < high {
		n := (low + high + 1) / 2
		if _, err := ParseResponse(worstReply(i, depth, size, n), q); err == nil {
			low = n
		} else {
			high = n - 1
		}
	}
	return worstReply(i, depth, size, low)
}

// worstSizes are a datagram as we ask for, and the longest message.
var worstSizes = []int{1232, MaxMessage}

func BenchmarkWorst(b *testing.B) {
	q := stubQuery(b, "a.", TypeA)
	for _, size := range worstSizes {
		for i := range worstShapes {
			for _, depth := range []int{0, 3, 30, 124} {
				for name, msg := range map[string][]byte{"taken": longestAccepted(q, i, depth, size), "refused": worstReply(i, depth, size, MaxMessage)} {
					if _, err := ParseResponse(msg, q); (err == nil) != (name == "taken") {
						continue // the worst of this shape is within its budget
					}
					b.Run(fmt.Sprintf("%d bytes/%s/%d pointers/%s", size, worstShapes[i].name, depth, name), func(b *testing.B) {
						b.ReportMetric(float64(len(msg)), "bytes")
						for b.Loop() {
							_, _ = ParseResponse(msg, q)
						}
					})
				}
			}
		}
	}
}

// TestWorst: whatever the names of a message point to, it is read in so many steps as its
// length allows, or refused; a reply that is taken can be rewritten, moved and written out
// within the same.
func TestWorst(t *testing.T) {
	race.SkipSequential(t)
	if most := newReadBudget(MaxMessage); most > 70_000 {
		t.Errorf("a message of 64 KiB may take %d steps, want 70,000 at most", most)
	}
	if most := newReadBudget(1232); most > 5_400 {
		t.Errorf("a datagram may take %d steps, want 5,400 at most", most)
	}
	q := stubQuery(t, "a.", TypeA)
	for _, size := range worstSizes {
		for i, shape := range worstShapes {
			refused := 0
			for _, depth := range []int{0, 3, 124} {
				msg := worstReply(i, depth, size, MaxMessage)
				s, err := scanResponse(msg, q, newReadBudget(len(msg)))
				if -s.left > oneName {
					t.Errorf("%s, %d pointers, %d bytes: %d steps too many were taken", shape.name, depth, size, -s.left)
				}
				if err != nil {
					refused++
					if !errors.Is(err, ErrResponse) || !errors.Is(err, errTooCostly) {
						t.Errorf("%s, %d pointers, %d bytes: %v", shape.name, depth, size, err)
					}
				}
				checkUse(t, q, longestAccepted(q, i, depth, size))
			}
			if refused == 0 && size == MaxMessage && !shape.plain {
				t.Errorf("%s, %d bytes: taken with any number of pointers", shape.name, size)
			}
		}
	}
}

// oneName is more than one name takes: the message is refused when it has been read.
const oneName = 2 * (MaxName + maxPointers + objectName)

// checkUse does with msg, a reply to q that is taken, all that follows pointers again.
func checkUse(t *testing.T, q *Query, msg []byte) {
	t.Helper()
	resp, err := ParseResponse(msg, q)
	noError(t, err)
	var r, other Reply
	r.Start(nil, q)
	r.Copy(resp.Packed, 60)
	r.Shuffle()
	other.Start(nil, stubQuery(t, "b.", TypeA))
	w := rewriter{from: r.b, left: rewriteBudget(r.b), to: &other, e: unchanged{}}
	if !w.sections(&r) && w.left < 0 {
		t.Errorf("%x is taken, and can't be rewritten", msg)
	}
	other.CopyAsAlias(&r)
	for range r.Aliases(make([]byte, MaxName)) {
	}
	_, _ = Unpack(append([]byte(nil), r.Finish(MaxMessage)...))
}

// largeReplies are long replies as servers send them: the question, and the records number i.
var largeReplies = []struct {
	name, qname string
	qtype       uint16
	answer      func(i int) string
	additional  func(i int) string
}{
	{name: "addresses", qname: "www.example.com.", qtype: dns.TypeA, answer: func(i int) string {
		return fmt.Sprintf("www.example.com. 60 IN A 10.0.%d.%d", i>>8, i&255)
	}},
	{name: "addresses behind an alias", qname: "www.example.com.", qtype: dns.TypeAAAA, answer: func(i int) string {
		if i == 0 {
			return "www.example.com. 60 IN CNAME a-long-name-in-front-of.prod.eu-west-1.cdn.example.net."
		}
		return fmt.Sprintf("a-long-name-in-front-of.prod.eu-west-1.cdn.example.net. 60 IN AAAA 2001:db8::%x", i)
	}},
	{name: "names of an IPv6 address", qname: "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.", qtype: dns.TypePTR, answer: func(i int) string {
		return fmt.Sprintf("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. 60 IN PTR h%d.rack7.dc1.eu-west-1.example.com.", i)
	}},
	{
		name: "name servers", qname: "example.com.", qtype: dns.TypeNS,
		answer: func(i int) string { return fmt.Sprintf("example.com. 60 IN NS ns%d.dns.eu-west-1.example.net.", i) },
		additional: func(i int) string {
			return fmt.Sprintf("ns%d.dns.eu-west-1.example.net. 60 IN A 10.0.%d.%d", i, i>>8, i&255)
		},
	},
	{
		name: "endpoints", qname: "_http._tcp.web.shop.svc.cluster.local.", qtype: dns.TypeSRV,
		answer: func(i int) string {
			return fmt.Sprintf("_http._tcp.web.shop.svc.cluster.local. 5 IN SRV 0 1 80 10-244-%d-%d.web.shop.svc.cluster.local.", i>>8, i&255)
		},
		additional: func(i int) string {
			return fmt.Sprintf("10-244-%d-%d.web.shop.svc.cluster.local. 5 IN A 10.244.%d.%d", i>>8, i&255, i>>8, i&255)
		},
	},
	{
		name: "endpoints with the longest names", qname: longLabels("s", "n"), qtype: dns.TypeSRV,
		answer: func(i int) string {
			return fmt.Sprintf("%s 5 IN SRV 0 1 80 %s", longLabels("s", "n"), longLabels(fmt.Sprint(i, "-p"), "s", "n"))
		},
		additional: func(i int) string {
			return fmt.Sprintf("%s 5 IN A 10.244.%d.%d", longLabels(fmt.Sprint(i, "-p"), "s", "n"), i>>8, i&255)
		},
	},
	{name: "Services of an address", qname: "1.2.244.10.in-addr.arpa.", qtype: dns.TypePTR, answer: func(i int) string {
		return fmt.Sprintf("1.2.244.10.in-addr.arpa. 5 IN PTR 10-244-2-1.service-%d.shop.svc.cluster.local.", i)
	}},
	{name: "texts", qname: "example.com.", qtype: dns.TypeTXT, answer: func(i int) string {
		return fmt.Sprintf(`example.com. 60 IN TXT "k=%d p=%s" "%[2]s"`, i, strings.Repeat("A", 200))
	}},
	{
		name: "signed endpoints", qname: "_http._tcp.web.shop.svc.cluster.local.", qtype: dns.TypeSRV,
		answer: func(i int) string {
			return fmt.Sprintf("_http._tcp.web.shop.svc.cluster.local. 5 IN SRV 0 1 80 h%d.web.shop.svc.cluster.local.", i)
		},
		additional: func(i int) string {
			return fmt.Sprintf("h%d.web.shop.svc.cluster.local. 5 IN RRSIG A 13 6 5 20300101000000 20200101000000 1 cluster.local. %s", i, strings.Repeat("AAAA", 21)+"AA==")
		},
	},
	{name: "DNSSEC keys", qname: "example.com.", qtype: dns.TypeDNSKEY, answer: func(i int) string {
		return fmt.Sprintf("example.com. 60 IN DNSKEY 256 3 8 %s", strings.Repeat("AAAA", 171+i%2))
	}},
	{name: "a zone", qname: "example.com.", qtype: dns.TypeANY, answer: func(i int) string {
		return fmt.Sprintf("h%d.r%d.dc1.eu-west-1.example.com. 60 IN CNAME s%d.r%d.services.eu-west-1.example.com.", i, i/16, i, i/16)
	}},
	{name: "keys", qname: "example.com.", qtype: dns.TypeANY, answer: func(i int) string {
		return fmt.Sprintf("h%d.example.com. 60 IN NSEC h%d.example.com. A AAAA", i, i+1)
	}},
	{name: "services", qname: "example.com.", qtype: dns.TypeHTTPS, answer: func(i int) string {
		return fmt.Sprintf("example.com. 60 IN HTTPS %d h%d.example.com. alpn=h2", i, i)
	}},
}

// longLabels is a name in the cluster whose first labels have 63 bytes each.
func longLabels(labels ...string) string {
	name := ""
	for _, l := range labels {
		name += (l + strings.Repeat("x", MaxLabel))[:MaxLabel] + "."
	}
	return name + "svc.cluster.local."
}

// TestCompressedTargets: SRV records with compressed targets, as older servers send them for a
// thousand endpoints (RFC 2782 forbids it), are taken, and so are their addresses.
func TestCompressedTargets(t *testing.T) {
	q := stubQuery(t, "_http._tcp.web.shop.svc.cluster.local.", TypeSRV)
	w := &worstCaseReply{b: append([]byte(nil), q.Packet...)}
	put16(w.b[2:], flagQR)
	var targets []int
	for i := range 1000 {
		w.record(questionPointer, TypeSRV, func() {
			w.b = append(w.b, 0, 0, 0, 1, 0, 80)
			targets = append(targets, len(w.b))
			label := fmt.Sprintf("10-244-%d-%d", i>>8, i&255)
			w.b = append(append(w.b, byte(len(label))), label...)
			w.b = append16(w.b, questionPointer+11) // behind _http._tcp
		})
	}
	answers := w.count
	for _, at := range targets {
		if at <= maxPointed {
			w.record(0xC000|uint16(at), TypeA, func() { w.b = append(w.b, 10, 244, 0, 1) })
		}
	}
	put16(w.b[10:], w.count-answers)
	put16(w.b[6:], answers)
	resp, err := ParseResponse(w.b, q)
	noError(t, err)
	if m := unpacked(t, replyBytes(q, resp.Packed, 60, MaxMessage)); len(m.Answer) != 1000 || !strings.HasSuffix(m.Answer[999].String(), " 10-244-3-231.web.shop.svc.cluster.local.") {
		t.Errorf("%d answers, the last %s", len(m.Answer), m.Answer[len(m.Answer)-1])
	}
	checkUse(t, q, w.b)
}

// TestLarge: the longest replies that servers send are taken, whatever their shape, and
// can be given to clients in every way.
func TestLarge(t *testing.T) {
	race.SkipSequential(t)
	for _, tt := range largeReplies {
		for _, optFirst := range []bool{false, true} {
			q := stubQuery(t, tt.qname, tt.qtype)
			m := new(dns.Msg).SetReply(unpacked(t, q.Packet))
			m.Compress = true
			if optFirst { // a rare shape
				m.SetEdns0(1232, false)
			}
			record := func(line string) dns.RR {
				rr, err := dns.NewRR(line)
				noError(t, err)
				return rr
			}
			for i := 0; ; i++ {
				before := *m
				m.Answer = append(m.Answer, record(tt.answer(i)))
				if tt.additional != nil {
					m.Extra = append(m.Extra, record(tt.additional(i)))
				} else if i == 0 && optFirst {
					m.Extra = append(m.Extra, record("x.example.com. 60 IN A 192.0.2.1"))
				}
				if i%10 == 0 && m.Len() > MaxMessage-8192 {
					m = &before
					break
				}
			}
			msg := packed(t, m)
			resp, err := ParseResponse(msg, q)
			if err != nil || resp.Contradictory {
				t.Errorf("%s, OPT first %v: %d records in %d bytes: %v", tt.name, optFirst, len(m.Answer), len(msg), err)
				continue
			}
			checkUse(t, q, msg)
			var r, other Reply
			r.Start(nil, q)
			r.Copy(resp.Packed, 60)
			other.Start(nil, stubQuery(t, "another-name.example.org.", tt.qtype))
			if !other.Rewrite(&r, unchanged{}, nil) {
				t.Errorf("%s can't be rewritten", tt.name)
			}
			if _, err := Unpack(r.Finish(MaxMessage)); err != nil {
				t.Errorf("%s can't be unpacked: %v", tt.name, err)
			}
		}
	}
}

// TestNamesInUnpackedTypes: the names in the RDATA of all types that miekg/dns reads are counted
// before it reads them.
func TestNamesInUnpackedTypes(t *testing.T) {
	for number, make := range dns.TypeToRR {
		rr := reflect.TypeOf(make()).Elem()
		_, compressible := shapeOf(number)
		_, listed := objectNames[number]
		switch number {
		case TypeNAPTR, typeHIP, typeIPSECKEY, typeAMTRELAY:
			listed = true
		}
		names := false
		for i := range rr.NumField() {
			switch rr.Field(i).Tag.Get("dns") {
			case "domain-name", "cdomain-name", "ipsechost", "amtrelayhost":
				names = true
			}
		}
		if rr.NumField() > 1 && rr.Field(1).Anonymous { // one type made of another
			names = names || compressible || listed
		}
		if names && !compressible && !listed {
			t.Errorf("the names of %s are not counted", dns.Type(number))
		}
	}
	for number := range objectNames {
		if _, ok := dns.TypeToRR[number]; !ok {
			t.Errorf("type %d is listed, and miekg/dns does not read it", number)
		}
	}
}
