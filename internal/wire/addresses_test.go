// These tests use addrStride, count and fixedLen, which are not exported.

package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestAddAddrsEqualsAdd: AddAddrs writes the same bytes as Add for each address, whatever the
// reply holds.
func TestAddAddrsEqualsAdd(t *testing.T) {
	types := []uint16{TypeA, TypeAAAA}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q := stubQuery(t, "a.example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, true) })
		var many, each Reply
		many.Start(nil, q)
		each.Start(nil, q)
		for range 1 + rng.IntN(6) {
			s, rtype, ttl := Section(rng.IntN(3)), types[rng.IntN(2)], rng.Uint32()
			owner := []int{AtQuestion, many.Suffix(9), maxPointed, maxPointed + 1}[rng.IntN(4)]
			if owner > AtQuestion+9 && len(many.b) < owner+12 {
				big := make([]byte, maxPointed) // and a root name at every offset
				many.Add(s, AtQuestion, 65280, 1, big)
				each.Add(s, AtQuestion, 65280, 1, big)
				continue
			}
			if owner > AtQuestion+9 && many.b[owner] != 0 {
				continue // inside of an address
			}
			packed := make([]byte, (addrStride(rtype)-fixedLen)*[]int{0, 1, 2, 50, 1000, 4000}[rng.IntN(6)])
			for i := range packed {
				packed[i] = byte(rng.Uint32())
			}
			before := each.Count(s)
			for p := packed; len(p) > 0; p = p[(addrStride(rtype) - fixedLen):] {
				each.Add(s, owner, rtype, ttl, p[:(addrStride(rtype)-fixedLen)])
			}
			if n := many.AddAddrs(s, owner, rtype, ttl, string(packed)); n != max(0, each.Count(s)-before) { // less than 0: the RRset was removed
				t.Fatalf("seed %d: %d records were written, want %d", seed, n, each.Count(s)-before)
			}
			if many.count != each.count || many.full != each.full || many.section != each.section || !bytes.Equal(many.b, each.b) {
				t.Fatalf("seed %d: %d bytes, counts %v, full %v; want %d bytes, counts %v, full %v",
					seed, len(many.b), many.count, many.full, len(each.b), each.count, each.full)
			}
		}
	}
}

// TestShuffleLast: every order occurs equally often, and nothing else changes.
func TestShuffleLast(t *testing.T) {
	const first, shuffled, rounds = 2, 4, 24_000
	for _, rtype := range []uint16{TypeA, TypeAAAA} {
		t.Run(dns.TypeToString[rtype], func(t *testing.T) {
			q := stubQuery(t, "a.example.", rtype)
			packed := make([]byte, (first+shuffled)*(addrStride(rtype)-fixedLen))
			for i := range packed {
				packed[i] = byte(i)
			}
			var r Reply
			r.Start(nil, q)
			r.AddAddrs(Answer, AtQuestion, rtype, 30, string(packed))
			ordered := addressesOf(t, &r)
			seen := map[string]int{}
			for range rounds {
				r.Reset()
				r.AddAddrs(Answer, AtQuestion, rtype, 30, string(packed))
				r.ShuffleLast(shuffled, rtype)
				m := unpacked(t, r.Finish(MaxMessage))
				seen[fmt.Sprint(m.Answer[first:])]++
				if m.Answer[0].String() != ordered[0] || m.Answer[1].String() != ordered[1] {
					t.Fatalf("what was not to be shuffled is\n%s", m)
				}
			}
			slices.Sort(ordered)
			equal(t, ordered, slices.Sorted(slices.Values(addressesOf(t, &r))), "the records are others")
			// 1,000 of each are to be expected, give or take 31: 300 is ten times that.
			if len(seen) != 24 {
				t.Errorf("%d orders of 24", len(seen))
			}
			for order, n := range seen {
				if n < 700 || n > 1300 {
					t.Errorf("%d times %s", n, order)
				}
			}
		})
	}
}

// TestShuffleLastUnchanged: fewer than two addresses, and owners that are written out, keep
// their order.
func TestShuffleLastUnchanged(t *testing.T) {
	var r Reply
	r.Start(nil, stubQuery(t, "a.", dns.TypeA))
	r.ShuffleLast(0, TypeA)
	r.Add(Answer, AtQuestion, 65280, 1, make([]byte, maxPointed))
	at := r.Add(Answer, AtQuestion, TypeCNAME, 1, []byte("\x03far\x00"))
	r.AddAddrs(Answer, at, TypeA, 1, "\x01\x02\x03\x04\x05\x06\x07\x08")
	before := bytes.Clone(r.b)
	for range 64 {
		r.ShuffleLast(2, TypeA)
	}
	r.ShuffleLast(1<<20, TypeA)
	if !bytes.Equal(before, r.b) {
		t.Error("the records changed")
	}
}

func addressesOf(t *testing.T, r *Reply) (list []string) {
	t.Helper()
	for _, rr := range unpacked(t, r.Finish(MaxMessage)).Answer {
		list = append(list, rr.String())
	}
	return list
}

func BenchmarkAddAddrs(b *testing.B) {
	for _, n := range []int{1, 10, 50} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := new(dns.Msg)
			m.SetQuestion("a.example.", dns.TypeA)
			packet, err := m.Pack()
			noError(b, err)
			var q Query
			q.Parse(packet)
			packed := string(make([]byte, 4*n))
			var r Reply
			r.Start(make([]byte, 0, 4096), &q)
			for b.Loop() {
				r.Reset()
				r.AddAddrs(Answer, AtQuestion, TypeA, 30, packed)
				r.ShuffleLast(n, TypeA)
			}
		})
	}
}

// TestAddressList: the addresses that may change places, and what becomes of the message when they do.
func TestAddressList(t *testing.T) {
	q := stubQuery(t, "wWw.Example.", dns.TypeA, func(*dns.Msg) {})
	var r Reply
	var l AddressList
	var name [MaxName]byte
	r.Start(nil, q)
	if l.Read(&r); l.Len() != 0 || l.Owner(&name) != nil {
		t.Errorf("%d addresses of an empty reply, of %x", l.Len(), l.Owner(&name))
	}
	for i := range 3 {
		r.Add(Answer, AtQuestion, TypeA, uint32(10+i), []byte{192, 0, 2, byte(i)})
	}
	if l.Read(&r); l.Len() != 3 || l.Addr(2).String() != "192.0.2.2" || Name(l.Owner(&name)).String() != "www.example." {
		t.Fatalf("%d addresses of %s, the last is %s", l.Len(), Name(l.Owner(&name)), l.Addr(2))
	}
	l.Sort([]uint8{1, 1, 0})
	l.Swap(1, 1)
	var got []string
	for _, rr := range unpacked(t, bytes.Clone(r.Finish(MaxMessage))).Answer {
		got = append(got, fmt.Sprint(rr.Header().Ttl, " ", rr.(*dns.A).A))
	}
	equal(t, []string{"12 192.0.2.2", "10 192.0.2.0", "11 192.0.2.1"}, got, "")
	r.Start(nil, q)
	for i := range MaxShuffled + 2 {
		r.Add(Answer, AtQuestion, TypeA, 1, []byte{192, 0, byte(i >> 8), byte(i)})
	}
	if l.Read(&r); l.Len() != MaxShuffled {
		t.Errorf("%d addresses, at most %d may change places", l.Len(), MaxShuffled)
	}
}
