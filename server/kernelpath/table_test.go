package kernelpath

// Inside the package: it reads the memory that the table shares with the programs, as they
// do. It needs no kernel, so it runs for every processor that Go compiles for.

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// sharedTypes are the Go types of memory that the programs read or write, by the name that C
// gives them.
var sharedTypes = map[string]any{
	"key": programKey{}, "slot": programSlot{}, "set": programSet{}, "state": programState{},
	"door": programDoor{}, "client": programClient{}, "client_state": programClientState{}, "client_count": programClientCount{}, "sample": programSample{},
}

// programStruct returns a structure as the compiler of the programs has laid it out.
func programStruct(t *testing.T, name string) *btf.Struct {
	t.Helper()
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	var s *btf.Struct
	if err := spec.Types.TypeByName(name, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSharedTypes checks that the agent and the programs agree on the size of every shared
// structure and on the place of each of its fields.
func TestSharedTypes(t *testing.T) {
	for name, v := range sharedTypes {
		c, typ := programStruct(t, name), reflect.TypeOf(v)
		if uint32(typ.Size()) != c.Size {
			t.Errorf("%s has %d bytes, %d for the programs", name, typ.Size(), c.Size)
		}
		for _, m := range c.Members {
			f, ok := typ.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, strings.ReplaceAll(m.Name, "_", "")) })
			if !ok {
				t.Errorf("%s has no field %s", name, m.Name)
				continue
			}
			size, err := btf.Sizeof(m.Type)
			if err != nil {
				t.Fatal(err)
			}
			if uint32(f.Offset) != m.Offset.Bytes() || int(f.Type.Size()) != size {
				t.Errorf("%s.%s: %d bytes at %d, %d at %d for the programs", name, m.Name, f.Type.Size(), f.Offset, size, m.Offset.Bytes())
			}
		}
	}
}

// record is the bytes of a structure in shared memory, which are little endian for the
// programs.
type record struct {
	fields map[string][]byte
}

// newRecord splits b into the fields of a structure.
func newRecord(t *testing.T, name string, b []byte) record {
	t.Helper()
	r := record{fields: make(map[string][]byte)}
	for _, m := range programStruct(t, name).Members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		at := int(m.Offset.Bytes())
		r.fields[m.Name] = b[at : at+size]
	}
	return r
}

func (r record) number(name string) uint64 {
	var b [8]byte
	copy(b[:], r.fields[name])
	return binary.LittleEndian.Uint64(b[:])
}

// memoryOf returns the bytes of v.
func memoryOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// reply returns the reply to a query that the program makes from a slot.
func (r record) reply(q *wire.Query) []byte {
	at := q.QuestionEnd()
	msg := append(bytes.Clone(q.Packet[:2]), r.fields["head"]...)
	msg = append(msg, q.Packet[wire.HeaderLen:at]...)
	msg = append(msg, r.fields["tail"][:r.number("tail_len")]...)
	for i := range r.number("ttls") {
		place := binary.LittleEndian.Uint16(r.fields["ttl_at"][2*i:])
		binary.BigEndian.PutUint32(msg[at+int(place):], uint32(r.number("life")))
	}
	if q.EDNS {
		binary.BigEndian.PutUint16(msg[len(msg)-optLen+3:], min(q.UDPSize, uint16(r.number("max_size"))))
	}
	return msg
}

// checksum returns the checksum of what the slot contributes to a reply.
func (r record) checksum(q *wire.Query) uint64 {
	var sum uint64
	add := func(b []byte, at int) {
		for i, c := range b {
			sum += uint64(c) << (8 * ((at + i) % 2))
		}
	}
	add(r.fields["head"], 2)
	add(r.fields["tail"][:r.number("tail_len")], q.QuestionEnd())
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return sum
}

// programTag returns the tag under which the program looks for a query.
func programTag(door uint32, q *wire.Query, variant programVariant, seed uint64) uint64 {
	tag := uint64(door)
	mix := func(word uint64) {
		tag = (tag ^ word) * seed
		tag ^= tag >> 32
	}
	name := q.Name()
	for len(name) > 0 {
		var word [8]byte
		name = name[copy(word[:], name):]
		mix(binary.LittleEndian.Uint64(word[:]))
	}
	qtype := binary.LittleEndian.Uint16(q.Packet[q.QuestionEnd()-4:])
	mix(uint64(qtype)<<8 | uint64(variant))
	return max(1, tag)
}

// TestTableMemory checks that the program finds every answer in the table's memory, and all
// parts of the agent's reply; and that answers are counted until they are dropped.
func TestTableMemory(t *testing.T) {
	tab := &table{sets: make([]programSet, slotCount/ways), slots: make([]programSlot, slotCount), seed: 0x9E3779B97F4A7C15}
	for i, e := range entries(new(uint32)) {
		for form, edit := range queryForms() {
			a := answerTo(t, ask(t, e.name, e.qtype, edit), e.build)
			a.FromCache, a.MaxSize, a.CountsDown, a.Life = i%2 != 0, e.maxSize, e.counts, life
			a.Ends, a.Source = 2*time.Hour, new(hits)
			a.Mark.Index, a.Mark.Value = 5, 1<<40+uint64(i)
			a.Waste = i%3 == 0
			a.More = marks(i % MaxMarks)
			a.Group = Group{Number: uint32(i % 2 * 9), Mark: epoch.Mark{Index: 3}}
			if !tab.put(a) {
				t.Fatalf("%s %d: not put", e.name, form)
			}
			a.Query.UDPSize = min(a.Query.UDPSize, e.maxSize)
			var r wire.Reply
			r.Start(nil, a.Query)
			e.build(&r)
			checkSlot(t, tab, a, r.Finish(512))
		}
	}
	if n, most := tab.usage(), len(entries(new(uint32)))*len(queryForms()); n < 2 || n > most {
		t.Errorf("%d answers are in use of %d", n, most)
	}
	if tab.clear(); tab.usage() != 0 {
		t.Errorf("%d answers are in use after all were dropped", tab.usage())
	}
}

// marks returns n different marks.
func marks(n int) (list []epoch.Mark) {
	for i := range n {
		list = append(list, epoch.Mark{Index: uint32(100 + i), Value: 1<<41 + uint64(i)})
	}
	return list
}

// checkSlot finds a's slot as the program does, and checks that it leads to the reply.
func checkSlot(t *testing.T, tab *table, a *Answer, want []byte) {
	t.Helper()
	variant, _ := variant(a.Query)
	tag := programTag(a.Listener, a.Query, variant, tab.seed)
	set := tag >> (64 - programBoundSETS_BITS)
	tags := memoryOf(&tab.sets[set])
	for way := range ways {
		if binary.LittleEndian.Uint64(tags[8*way:]) != tag {
			continue
		}
		slot := newRecord(t, "slot", memoryOf(&tab.slots[int(set)*ways+way]))
		key := newRecord(t, "key", slot.fields["key"])
		name := a.Query.Name()
		if key.number("door") != uint64(a.Listener) || key.number("name_len") != uint64(len(name)) || key.number("variant") != uint64(variant) ||
			!bytes.Equal(key.fields["type"], a.Query.Packet[a.Query.QuestionEnd()-4:][:2]) || !bytes.Equal(bytes.TrimRight(key.fields["name"], "\x00"), bytes.TrimRight(name, "\x00")) {
			t.Errorf("the key of %x is %x", a.Query.Packet, slot.fields["key"])
		}
		if slot.number("seq")%2 != 0 || slot.number("epoch") != a.Mark.Value || slot.number("epoch_at") != uint64(a.Mark.Index) || slot.number("ends") != uint64(a.Ends) || slot.number("waste") != uint64(flag(a.Waste)) {
			t.Errorf("the slot of %x: %x", a.Query.Packet, slot.fields)
		}
		if slot.number("group") != uint64(a.Group.Number) || slot.number("group_at") != uint64(a.Group.Mark.Index) || slot.number("more") != uint64(len(a.More)) {
			t.Errorf("the slot of %x: %x", a.Query.Packet, slot.fields)
		}
		for i, m := range a.More {
			if binary.LittleEndian.Uint32(slot.fields["more_at"][4*i:]) != m.Index || binary.LittleEndian.Uint64(slot.fields["more_epoch"][8*i:]) != m.Value {
				t.Errorf("the slot of %x: %x", a.Query.Packet, slot.fields)
			}
		}
		if got := slot.reply(a.Query); !bytes.Equal(got, want) {
			t.Errorf("the reply to %x is\n%x, want\n%x", a.Query.Packet, got, want)
		}
		if got, want := slot.number("sum"), slot.checksum(a.Query); got%0xFFFF != want%0xFFFF {
			t.Errorf("the checksum for %x is %#x, want %#x", a.Query.Packet, got, want)
		}
		return
	}
	t.Errorf("no slot for %x", a.Query.Packet)
}
