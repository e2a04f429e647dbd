// The fuzzers use the builder, which is not exported, so that a zone is small.

package zonefile

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	fuzzOrigin wire.Name = "\x01z\x04test\x00"
	// fuzzSize bounds the zones, so that a line with $GENERATE takes milliseconds.
	fuzzSize = 1 << 17
)

// fuzzZones are zones of each shape.
var fuzzZones = []string{
	"@ 60 SOA ns host 1 2 3 4 5\n@ 60 NS ns\nns 60 A 192.0.2.1\nwww 60 AAAA 2001:db8::1\n",
	"@ 60 SOA ns host 1 2 3 4 5\n*.wild 60 CNAME a.b\na.b 60 MX 1 c\nx.*.odd 60 TXT a\n*.self 60 CNAME *.self\n",
	"@ 60 SOA ns host 1 2 3 4 5\nsub 60 NS ns.sub\nns.sub 60 A 192.0.2.1\nsub 60 DS 1 13 2 00\nold 60 DNAME new\nw.new 60 SRV 1 2 3 old\nself 60 DNAME self\n",
	"$ORIGIN test.\n$TTL 1h\nz SOA ns host (1 2 3 4 5) ; comment\nz HTTPS 1 . alpn=h2\n$GENERATE 1-9 h$.z A 192.0.2.$\nz NSEC a.z A\nz RRSIG A 13 2 60 20300101000000 20200101000000 1 z aGVsbG8=\n",
	"@ 60 SOA \\# 1 00\n", "@ 60 SOA ns host 1 2 3 4 5\n@ 60 MX \\# 2 0001\n@ 60 TYPE65280 \\# 0\na 60 NS \\# 0\n@ 60 SVCB \\# 2 0001\n",
}

// FuzzZone holds that no text makes the parser of zone files or the builder panic, that a zone keeps its bounds and gives all
// of its records back, and that each reply is a valid message.
func FuzzZone(f *testing.F) {
	for _, text := range fuzzZones {
		f.Add(text, "www", dns.TypeA)
		f.Add(text, "x.y.wild", dns.TypeANY)
		f.Add(text, "a.old", dns.TypeNS)
	}
	f.Fuzz(func(t *testing.T, text, name string, qtype uint16) {
		b := builder{origin: fuzzOrigin, soa: -1, scale: 1, maxSize: fuzzSize}
		for rr, err := range (wire.ZoneFile{Origin: fuzzOrigin, Path: "db"}).Records(strings.NewReader(text)) {
			if err != nil || b.add(rr) != nil {
				return
			}
		}
		if z, err := b.build(); err == nil {
			checkZone(t, z, name, qtype)
		}
	})
}

// FuzzTransfer holds the same for the messages of a transfer, each of which begins with its length.
func FuzzTransfer(f *testing.F) {
	for _, text := range fuzzZones[:4] {
		f.Add(fuzzMessages(f, text), "www", dns.TypeA)
	}
	f.Fuzz(func(t *testing.T, messages []byte, name string, qtype uint16) {
		b := builder{origin: fuzzOrigin, soa: -1, scale: 1, maxSize: fuzzSize}
		in := wire.TransferIn{Zone: fuzzOrigin}
		for rest := messages; !in.Done(); {
			if len(rest) < 2 || len(rest)-2 < int(binary.BigEndian.Uint16(rest)) {
				return
			}
			n := 2 + int(binary.BigEndian.Uint16(rest))
			if in.Read(rest[2:n], b.add) != nil {
				return
			}
			rest = rest[n:]
		}
		if z, err := b.build(); err == nil {
			checkZone(t, z, name, qtype)
		}
	})
}

// fuzzMessages is the transfer of a zone, with the ID 0 and one message for each record.
func fuzzMessages(f *testing.F, text string) (messages []byte) {
	f.Helper()
	var list []dns.RR
	p := dns.NewZoneParser(strings.NewReader(text), "z.test.", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		list = append(list, rr)
	}
	if p.Err() != nil {
		f.Fatal(p.Err())
	}
	for _, rr := range append(list, list[0]) {
		m := new(dns.Msg).SetAxfr("z.test.")
		m.Id, m.Response, m.Compress, m.Answer = 0, true, true, []dns.RR{rr}
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		messages = append(binary.BigEndian.AppendUint16(messages, uint16(len(packed))), packed...)
	}
	return messages
}

// checkZone checks a zone, and its replies about name and about its own names.
func checkZone(t *testing.T, z *Zone, name string, qtype uint16) {
	again := builder{origin: fuzzOrigin, soa: -1, scale: 1, maxSize: 16 * fuzzSize}
	n := 0
	for rr := range z.All() {
		if err := again.add(rr); err != nil {
			t.Fatalf("record %d: %v", n, err)
		}
		if n++; n <= 8 {
			checkReply(t, z, rr.Owner, rr.Type)
			checkReply(t, z, rr.Owner, qtype)
		}
	}
	second, err := again.build()
	if err != nil || n != z.records || !bytes.Equal(second.data, z.data) {
		t.Fatalf("%d of %d records make another zone: %v", n, z.records, err)
	}
	if z.Size() > 4*fuzzSize {
		t.Fatalf("the zone takes %d bytes", z.Size())
	}
	if asked, err := wire.ParseName(name + ".z.test"); err == nil {
		checkReply(t, z, []byte(asked), qtype)
	}
}

// checkReply checks the reply to a query.
func checkReply(t *testing.T, z *Zone, name []byte, qtype uint16) {
	var q wire.Query
	if q.Parse(wire.AppendClientQuery(nil, 1, name, qtype, true, false)) != wire.Serve {
		return
	}
	var r wire.Reply
	r.Start(nil, &q)
	var a answer
	if o, lead := a.run(z, &q, &r, nil); o == authority.Leads {
		lead.Zone.Complete(&q, &r, wire.NXDomain, 0)
	}
	packed := r.Finish(wire.MaxMessage)
	if err := new(dns.Msg).Unpack(packed); err != nil {
		t.Fatalf("the reply %x: %v", packed, err)
	}
}
