package reply_test

import (
	"encoding/binary"
	"fmt"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/reply"
)

// owner notes what it is told.
type owner struct {
	hits, uses uint64
	usedAt     time.Duration
}

func (o *owner) CountHits(n uint64)              { o.hits += n }
func (o *owner) Use(n uint64, now time.Duration) { o.uses, o.usedAt = o.uses+n, now }

const epochBits = 4

func newTable() *epoch.Table {
	return epoch.New(make([]atomic.Uint64, epoch.Words(epochBits)), 0, epochBits)
}

// newCache makes a cache for n replies whose marks are of the table.
func newCache(table *epoch.Table, n int) *reply.Cache[*owner] {
	return reply.New[*owner](n, &reply.Tables{Cached: table})
}

// exchange is a query and its reply.
type exchange struct {
	query *wire.Query
	reply []byte
}

// newExchange returns a query for name, with EDNS, and a reply with the records.
func newExchange(t testing.TB, name string, records ...string) exchange {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.SetEdns0(1232, false)
	return exchangeOf(t, m, records...)
}

func exchangeOf(t testing.TB, m *dns.Msg, records ...string) (x exchange) {
	t.Helper()
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	x.query = new(wire.Query)
	if x.query.Parse(packet) != wire.Serve {
		t.Fatal("not a query that is served")
	}
	r := new(dns.Msg).SetReply(m)
	r.Compress = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		if rr.Header().Rrtype == dns.TypeSOA {
			r.Ns = append(r.Ns, rr)
		} else {
			r.Answer = append(r.Answer, rr)
		}
	}
	if m.IsEdns0() != nil {
		r.SetEdns0(1232, false)
	}
	if x.reply, err = r.Pack(); err != nil {
		t.Fatal(err)
	}
	return x
}

// answer is x as it is kept, in group 1 of the table.
func (x exchange) answer(table *epoch.Table) *reply.Answer {
	return &reply.Answer{Query: x.query, Reply: x.reply, Terms: reply.Terms{Mark: table.Mark(1)}}
}

// get asks with the ID and returns the reply; nil if there is none.
func get(t testing.TB, c *reply.Cache[*owner], x exchange, id uint16, now time.Duration) *dns.Msg {
	t.Helper()
	packet := append([]byte(nil), x.query.Packet...)
	binary.BigEndian.PutUint16(packet, id)
	b, e, _ := c.Get(packet, reply.For{}, now, nil)
	if e == nil {
		return nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatal(err)
	}
	if m.Id != id {
		t.Errorf("the ID is %d, want %d", m.Id, id)
	}
	return m
}

// answers returns the records of the answer section.
func answers(m *dns.Msg) (list []string) {
	for _, rr := range m.Answer {
		list = append(list, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	return list
}

// TestReply: a reply is sent as it was, with another ID.
func TestReply(t *testing.T) {
	x, table := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1", "a.test. 30 IN A 192.0.2.2"), newTable()
	c := newCache(table, reply.MinReplies)
	c.Put(x.answer(table), reply.For{}, new(owner), 0)
	for id := range uint16(3) {
		b, e, _ := c.Get(append([]byte{0, byte(id)}, x.query.Packet[2:]...), reply.For{}, 0, []byte("before"))
		if e == nil {
			t.Fatal("no reply")
		}
		want := append([]byte("before"), x.reply...)
		want[6], want[7] = 0, byte(id)
		if diff := cmp.Diff(want, b); diff != "" {
			t.Errorf("the reply differs (-want +got):\n%s", diff)
		}
	}
}

// TestKey: only the same bytes behind the ID, over the same family, are the same query.
func TestKey(t *testing.T) {
	x, table := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1"), newTable()
	c := newCache(table, reply.MinReplies)
	c.Put(x.answer(table), reply.For{}, new(owner), 0)
	for i := range x.query.Packet {
		packet := append([]byte(nil), x.query.Packet...)
		packet[i] ^= 0x20
		if _, e, _ := c.Get(packet, reply.For{}, 0, nil); (e != nil) != (i < 2) {
			t.Errorf("byte %d: found is %v", i, e != nil)
		}
	}
	if _, e, _ := c.Get(x.query.Packet, reply.For{IPv6: true}, 0, nil); e != nil {
		t.Error("a query over IPv6 is answered as one over IPv4")
	}
	for n := range x.query.Packet {
		if _, e, _ := c.Get(x.query.Packet[:n], reply.For{}, 0, nil); e != nil {
			t.Errorf("the first %d bytes are answered", n)
		}
	}
}

// TestTTL: TTLs of all records count down, in seconds rounded up, and the reply ends at its expiry.
func TestTTL(t *testing.T) {
	x, table := newExchange(t, "a.test.", "a.test. 30 IN CNAME b.test.", "b.test. 30 IN A 192.0.2.1", "test. 30 IN SOA a. b. 1 2 3 4 5"), newTable()
	c := newCache(table, reply.MinReplies)
	const begin = time.Hour
	a := x.answer(table)
	a.CountsDown, a.Life, a.Ends, a.Expires = true, 30, begin+30*time.Second, begin+25*time.Second
	c.Put(a, reply.For{}, new(owner), begin)
	for passed, want := range map[time.Duration]uint32{
		0: 30, time.Millisecond: 30, time.Second: 29, 24*time.Second + time.Millisecond: 6, 25*time.Second - 1: 6, -time.Minute: 30,
	} {
		m := get(t, c, x, 1, begin+passed)
		if m == nil {
			t.Fatalf("no reply after %v", passed)
		}
		for _, rr := range append(m.Answer, m.Ns...) {
			if rr.Header().Ttl != want {
				t.Errorf("after %v the TTL of %v, want %d", passed, rr, want)
			}
		}
	}
	if get(t, c, x, 1, begin+25*time.Second) != nil {
		t.Error("an expired reply is sent")
	}
	if get(t, c, x, 1, begin) != nil {
		t.Error("a reply that has ended is sent")
	}
}

// TestMark: a reply ends when the counter of its group moves, and with no other.
func TestMark(t *testing.T) {
	x, table := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1"), newTable()
	c := newCache(table, reply.MinReplies)
	c.Put(x.answer(table), reply.For{}, new(owner), 0)
	table.Bump(2)
	table.BumpAny()
	if get(t, c, x, 1, 0) == nil {
		t.Error("a change of another group ends the reply")
	}
	table.Bump(1)
	if get(t, c, x, 1, 0) != nil {
		t.Error("the reply survives the change of its group")
	}
	a := x.answer(table)
	a.Mark = table.MarkAny()
	c.Put(a, reply.For{}, new(owner), 0)
	table.BumpAny()
	if get(t, c, x, 1, 0) != nil {
		t.Error("the reply survives a change of any group")
	}
}

// TestMarks: a reply ends with the first of two marks that moves, and one with three is not kept.
func TestMarks(t *testing.T) {
	x, table := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1"), newTable()
	c := newCache(table, reply.MinReplies)
	for group := range uint64(2) {
		a := x.answer(table)
		a.More = []epoch.Mark{table.Mark(2)}
		c.Put(a, reply.For{}, new(owner), 0)
		if get(t, c, x, 1, 0) == nil {
			t.Fatal("no reply")
		}
		table.Bump(1 + group)
		if get(t, c, x, 1, 0) != nil {
			t.Errorf("the reply survives a change of group %d", 1+group)
		}
	}
	a := x.answer(table)
	a.More = []epoch.Mark{a.Mark, a.Mark}
	c.Put(a, reply.For{}, new(owner), 0)
	if get(t, c, x, 1, 0) != nil {
		t.Error("a reply that depends on three marks is kept")
	}
}

// TestSerial: the SOA record has the serial that the zone has when the reply is sent.
func TestSerial(t *testing.T) {
	x, table := newExchange(t, "none.test.", "test. 30 IN SOA ns.test. mail.test. 7 2 3 4 5"), newTable()
	c := newCache(table, reply.MinReplies)
	serial := table.AcquireValue()
	a := x.answer(table)
	a.Mark.Serial = serial.Index
	c.Put(a, reply.For{}, new(owner), 0)
	for _, n := range []uint32{8, 1 << 31} {
		serial.Store(n)
		m := get(t, c, x, 1, 0)
		if m == nil {
			t.Fatal("no reply")
		}
		if soa, ok := m.Ns[0].(*dns.SOA); !ok || soa.Serial != n || soa.Refresh != 2 {
			t.Errorf("the record is %v, want serial %d", m.Ns[0], n)
		}
	}
}

// TestRotation: addresses that are shuffled come in each rotation, and other records stay.
func TestRotation(t *testing.T) {
	alias := "a.test. 30 IN CNAME b.test."
	x := newExchange(t, "a.test.", alias, "b.test. 30 IN A 192.0.2.1", "b.test. 30 IN A 192.0.2.2", "b.test. 30 IN A 192.0.2.3")
	table, seen := newTable(), map[string]int{}
	c := newCache(table, reply.MinReplies)
	a := x.answer(table)
	a.Shuffled = true
	c.Put(a, reply.For{}, new(owner), 0)
	for range 1000 {
		m := get(t, c, x, 1, 0)
		if m == nil {
			t.Fatal("no reply")
		}
		seen[strings.Join(answers(m), "; ")]++
	}
	for first := range 3 {
		want := alias
		for i := range 3 {
			want += fmt.Sprintf("; b.test. 30 IN A 192.0.2.%d", (first+i)%3+1)
		}
		if seen[want] == 0 {
			t.Errorf("never %s", want)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d orders, want 3: %v", len(seen), seen)
	}
	mixed := newExchange(t, "c.test.", "c.test. 30 IN A 192.0.2.1", "c.test. 30 IN TXT x", "c.test. 30 IN A 192.0.2.2")
	a = mixed.answer(table)
	a.Shuffled = true
	c.Put(a, reply.For{}, new(owner), 0)
	if get(t, c, mixed, 1, 0) != nil {
		t.Error("addresses that are not adjacent are kept in one order")
	}
}

// TestBounds: long queries and replies are not kept, nor replies with too many TTLs to count down.
func TestBounds(t *testing.T) {
	table := newTable()
	c := newCache(table, reply.MinReplies)
	padded := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
	padded.SetEdns0(1232, false)
	padded.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 250)}}
	var many []string
	for i := range 1 + reply.MaxTTLs {
		many = append(many, fmt.Sprintf("m.test. 30 IN A 192.0.2.%d", i))
	}
	for name, x := range map[string]exchange{
		"a long query":  exchangeOf(t, padded, "a.test. 30 IN A 192.0.2.1"),
		"a long reply":  newExchange(t, "l.test.", "l.test. 30 IN TXT "+strings.Repeat(strings.Repeat("x", 200)+" ", 3)),
		"many records":  newExchange(t, "m.test.", many...),
		"truncated":     truncated(newExchange(t, "t.test.")),
		"a short reply": {query: newExchange(t, "s.test.").query, reply: []byte{1, 2, 3}},
	} {
		a := x.answer(table)
		a.CountsDown, a.Ends = true, time.Hour
		c.Put(a, reply.For{}, new(owner), 0)
		if _, e, _ := c.Get(x.query.Packet, reply.For{}, 0, nil); e != nil {
			t.Errorf("%s is kept", name)
		}
	}
}

// truncated returns x with a truncated reply.
func truncated(x exchange) exchange {
	x.reply[2] |= 0x02 // TC
	return x
}

// TestSize: a cache has places for as many replies as it is made for, within the bounds.
func TestSize(t *testing.T) {
	for n, want := range map[int]int{0: 128, 128: 128, 129: 256, 1000: 1024, 1 << 20: 2048} {
		table := newTable()
		c := newCache(table, n)
		var all []exchange
		for i := range 20_000 {
			x := newExchange(t, fmt.Sprintf("n%d.test.", i), "a.test. 30 IN A 192.0.2.1")
			c.Put(x.answer(table), reply.For{}, new(owner), 0)
			all = append(all, x)
		}
		kept := 0
		for _, x := range all {
			if get(t, c, x, 1, 0) != nil {
				kept++
			}
		}
		if kept != want {
			t.Errorf("%d: %d replies are kept, want %d", n, kept, want)
		}
	}
}

// TestWanted: the second of two like queries is worth keeping, if fewer than four others of the set come between.
func TestWanted(t *testing.T) {
	c, x := newCache(newTable(), reply.MinReplies), newExchange(t, "a.test.")
	for i, want := range []bool{false, true, true} {
		if _, _, wanted := c.Get(x.query.Packet, reply.For{}, 0, nil); wanted != want {
			t.Errorf("query %d: wanted is %v", i+1, wanted)
		}
	}
	again := 0
	for i := range 10_000 {
		if _, _, a := c.Get(newExchange(t, fmt.Sprintf("n%d.test.", i)).query.Packet, reply.For{}, 0, nil); a {
			again++
		}
	}
	if again > 0 {
		t.Errorf("%d of 10,000 different queries are said to be asked again", again)
	}
}

// TestReplacement: a flood of names that are asked for once does not replace replies in use, and replies that are
// no longer asked for are replaced.
func TestReplacement(t *testing.T) {
	table := newTable()
	c := newCache(table, reply.MinReplies)
	hot := newExchange(t, "hot.test.", "hot.test. 30 IN A 192.0.2.1")
	c.Put(hot.answer(table), reply.For{}, new(owner), 0)
	flood := func(names int, ask bool) (kept bool) {
		for i := range names {
			x := newExchange(t, fmt.Sprintf("n%d.test.", i), "a.test. 30 IN A 192.0.2.1")
			c.Put(x.answer(table), reply.For{}, new(owner), 0)
			if ask && i%16 == 0 {
				if get(t, c, hot, 1, 0) == nil {
					return false
				}
				c.EndBatch(0)
			}
		}
		return true
	}
	if !flood(20_000, true) {
		t.Fatal("a reply in use is replaced")
	}
	flood(20_000, false)
	if get(t, c, hot, 1, 0) != nil {
		t.Error("a reply that is no longer asked for stays")
	}
}

// TestReports: hits are counted at the end of each batch. Uses are reported after ten seconds, after 256 hits, after 64
// changes elsewhere, and when a reply ends.
func TestReports(t *testing.T) {
	table, o := newTable(), new(owner)
	c := newCache(table, reply.MinReplies)
	x := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1")
	c.Put(x.answer(table), reply.For{}, o, 0)
	now := time.Duration(0)
	batch := func(hits int) {
		for range hits {
			if get(t, c, x, 1, now) == nil {
				t.Fatal("no reply")
			}
		}
		c.EndBatch(now)
	}
	change := func(times int) {
		for range times {
			table.Bump(2)
		}
	}
	check := func(when string, hits, uses uint64) {
		t.Helper()
		if o.hits != hits || o.uses != uses {
			t.Errorf("%s: %d hits, %d uses, want %d, %d", when, o.hits, o.uses, hits, uses)
		}
	}
	batch(3)
	check("after a batch", 3, 0)
	batch(252)
	check("after 255 hits", 255, 0)
	batch(1)
	check("after 256 hits", 256, 256)
	batch(1)
	now = 10 * time.Second
	batch(1)
	check("after ten seconds", 258, 258)
	change(63)
	batch(1)
	check("after 63 changes", 259, 258)
	change(1)
	batch(1)
	check("after 64 changes", 260, 260)
	change(63)
	batch(1)
	check("after 63 more", 261, 260)
	if get(t, c, x, 1, now) == nil {
		t.Fatal("no reply")
	}
	table.Bump(1)
	_ = get(t, c, x, 1, now)
	check("after the end", 262, 262)
	c.EndBatch(now)
	check("after the batch of the end", 262, 262)

	c.Put(x.answer(table), reply.For{}, o, now)
	batch(4)
	c.Clear(now)
	check("after Clear", 266, 266)
	if get(t, c, x, 1, now) != nil {
		t.Error("a reply survives Clear")
	}
}

// TestNoLock: the package has no lock and writes no shared memory: it imports neither sync nor sync/atomic.
func TestNoLock(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 3 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if strings.HasPrefix(i.Path.Value, `"sync`) {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}

// TestAllocs: a hit allocates nothing.
func TestAllocs(t *testing.T) {
	table := newTable()
	c := newCache(table, reply.MinReplies)
	x := newExchange(t, "a.test.", "a.test. 30 IN A 192.0.2.1", "a.test. 30 IN A 192.0.2.2")
	a := x.answer(table)
	a.Shuffled, a.CountsDown, a.Ends, a.Life = true, true, time.Hour, 30
	c.Put(a, reply.For{}, new(owner), 0)
	buf := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(100, func() {
		if _, e, _ := c.Get(x.query.Packet, reply.For{}, 0, buf); e == nil {
			t.Error("no reply")
		}
		c.EndBatch(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzReply: whatever the reply is, it is either not kept or sent again as it was but for the ID, with whatever ID.
func FuzzReply(f *testing.F) {
	x := newExchange(f, "a.test.", "a.test. 30 IN CNAME b.test.", "b.test. 30 IN A 192.0.2.1", "b.test. 30 IN A 192.0.2.2", "test. 30 IN SOA a. b. 1 2 3 4 5")
	f.Add(x.reply, true, true, true)
	f.Add(x.reply, false, false, false)
	f.Add(x.reply[:len(x.reply)-3], true, true, false)
	table := newTable()
	serial := table.AcquireValue()
	f.Fuzz(func(t *testing.T, msg []byte, countsDown, shuffled, withSerial bool) {
		c := newCache(table, reply.MinReplies)
		y := exchange{query: x.query, reply: msg}
		a := y.answer(table)
		a.CountsDown, a.Shuffled, a.Ends, a.Life = countsDown, shuffled, time.Hour, 30
		if withSerial {
			a.Mark.Serial = serial.Index
		}
		c.Put(a, reply.For{}, new(owner), 0)
		for range 3 {
			b, e, _ := c.Get(x.query.Packet, reply.For{}, 0, nil)
			if e == nil {
				return
			}
			if len(b) != len(msg) {
				t.Fatalf("%d bytes, want %d", len(b), len(msg))
			}
			if !countsDown && !shuffled && !withSerial && string(b[2:]) != string(msg[2:]) {
				t.Fatalf("%x is sent as %x", msg, b)
			}
		}
	})
}
