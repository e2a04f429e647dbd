package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// worst builds a reply to the query "a. A" whose names cost as much to read as they can:
// the first record holds names that are a pointer after each label, and all others lead
// there.
type worst struct {
	b     []byte
	count uint16
	names []int // the offsets of those names, the dearest last
}

// headLen is the end of the question of a worst.
const headLen = HeaderLen + 3 + 4

// newWorst begins a reply, with names of up to depth pointers; with none they have the
// longest labels there are.
func newWorst(depth int) *worst {
	w := &worst{b: []byte{0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, 1, 0, 1}}
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
func (w *worst) record(owner, rtype uint16, data func()) {
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
func (w *worst) owner() uint16 {
	return 0xC000 | uint16(w.names[len(w.names)-1-int(w.count)%min(2, len(w.names))])
}

// point appends a pointer to the dearest name.
func (w *worst) point() { w.b = append16(w.b, 0xC000|uint16(w.names[len(w.names)-1])) }

// worstShapes are replies that are dear to read, each in another way: what they begin
// with, and what each of their records is.
var worstShapes = []struct {
	name       string
	begin, one func(*worst)
}{
	{"owners", nil, func(w *worst) { w.record(w.owner(), TypeA, func() { w.b = append(w.b, 192, 0, 2, 1) }) }},
	{"RDATA", nil, func(w *worst) { w.record(questionPointer, TypePTR, w.point) }},
	{"owners and RDATA", nil, func(w *worst) { w.record(w.owner(), TypePTR, w.point) }},
	{"two names in RDATA", nil, func(w *worst) { w.record(w.owner(), 17, func() { w.point(); w.point() }) }},
	{
		"behind sixteen aliases",
		func(w *worst) {
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
		func(w *worst) { w.record(w.owner(), TypePTR, w.point) },
	},
	{
		"aliases in a circle", func(w *worst) { w.record(questionPointer, TypeCNAME, func() { w.b = append16(w.b, questionPointer) }) },
		func(w *worst) { w.record(w.owner(), TypePTR, w.point) },
	},
	{"aliases of one name", nil, func(w *worst) { w.record(questionPointer, TypeCNAME, w.point) }},
	{"RDATA of objects", nil, func(w *worst) { w.record(questionPointer, 47, func() { w.point(); w.b = append(w.b, 0, 1, 0x40) }) }},
	{"many names in RDATA", nil, func(w *worst) {
		w.record(questionPointer, typeHIP, func() {
			w.b = append(w.b, 0, 0, 0, 0)
			for range 100 {
				w.point()
			}
		})
	}},
	{
		"a rare shape",
		func(w *worst) { // an owner that the question could stand for
			w.b = append(w.b, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
			w.count++
		},
		func(w *worst) { w.record(w.owner(), TypePTR, w.point) },
	},
	{
		"a rare shape with one owner",
		func(w *worst) {
			w.b = append(w.b, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
			w.count++
		},
		func(w *worst) {
			w.record(0xC000|uint16(w.names[len(w.names)-1]), TypePTR, func() { w.b = append(w.b, 1, byte(w.count), 0) })
		},
	},
}

// worstReply is the i-th shape with n records at most, in size bytes at most.
func worstReply(i, depth, size, n int) []byte {
	w := newWorst(depth)
	if begin := worstShapes[i].begin; begin != nil {
		begin(w)
	}
	before := w.b
	for range n {
		before = append([]byte(nil), w.b...)
		if worstShapes[i].one(w); len(w.b) > size {
			return before
		}
	}
	return w.b
}

// dearest is the longest of worstReply that is taken, in size bytes at most.
func dearest(q *Query, i, depth, size int) []byte {
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
	q := ask(b, "a.", TypeA)
	for _, size := range worstSizes {
		for i := range worstShapes {
			for _, depth := range []int{0, 3, 30, 124} {
				for name, msg := range map[string][]byte{"taken": dearest(q, i, depth, size), "refused": worstReply(i, depth, size, MaxMessage)} {
					b.Run(fmt.Sprintf("%d bytes/%s/%d pointers/%s", size, worstShapes[i].name, depth, name), func(b *testing.B) {
						if _, err := ParseResponse(msg, q); (err == nil) != (name == "taken") {
							b.Skipf("%d bytes: %v", len(msg), err)
						}
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

var _ = errors.New
var _ = reflect.TypeOf
var _ = strings.Cut
var _ = dns.Copy
