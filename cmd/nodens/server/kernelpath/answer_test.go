package kernelpath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

var (
	door4   = netip.MustParseAddrPort("169.254.20.10:53")
	door6   = netip.MustParseAddrPort("[fd00::10]:53")
	client4 = netip.MustParseAddrPort("10.244.1.7:40001")
	client6 = netip.MustParseAddrPort("[fd00:1::7]:40001")
)

// loopback is the link that test runs come in on.
const loopback = 1

// lab is a path with doors, and clients that are admitted.
type lab struct {
	*Path
	t testing.TB
}

func newLab(t testing.TB) *lab {
	l := &lab{Path: open(t), t: t}
	if err := l.SetDoors(map[netip.AddrPort]uint32{door4: 7, door6: 7}); err != nil {
		t.Fatal(err)
	}
	l.Beat()
	l.admit(client4.Addr(), time.Minute)
	l.admit(client6.Addr(), time.Minute)
	return l
}

func (l *lab) admit(addr netip.Addr, d time.Duration) {
	l.t.Helper()
	c := programClient{Ifindex: loopback, Door: 7, Addr: doorOf(netip.AddrPortFrom(addr, 0)).Addr}
	pass := programPass{Until: uint64(now() + d), Renew: uint64(now() + d)}
	if err := l.objects.Clients.Put(&c, &pass); err != nil {
		l.t.Fatal(err)
	}
}

// frame is a query in its headers.
func frame(from, to netip.AddrPort, msg []byte) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	size := len(msg) + 8
	if from.Addr().Is4() {
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(size+20))
		b = append(b, 0, 7, 0, 0, 33, 17, 0, 0)
		b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		binary.LittleEndian.PutUint16(b[24:], ^uint16(fold(sumOf(b[14:34], 0))))
	} else {
		b = append(b, 0x86, 0xDD, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(size))
		b = append(b, 17, 33)
		b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	}
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(size))
	b = append(b, 0, 0)
	b = append(b, msg...)
	binary.LittleEndian.PutUint16(b[at+6:], udpSum(b, at))
	return b
}

// udpSum is the right UDP checksum of the frame whose UDP header is at that place and has a
// checksum of 0.
func udpSum(b []byte, at int) uint16 {
	addrs := b[26:34]
	if at > 34 {
		addrs = b[22:54]
	}
	size := uint16(len(b) - at)
	pseudo := binary.BigEndian.AppendUint16(append(bytes.Clone(addrs), 0, 17), size)
	if sum := ^uint16(fold(fold(sumOf(pseudo, 0) + sumOf(b[at:], 0)))); sum != 0 {
		return sum
	}
	return 0xFFFF
}

const redirected = 7

// run gives the program a frame.
func (l *lab) run(in []byte) (verdict uint32, out []byte) {
	l.t.Helper()
	out = make([]byte, 2048)
	opts := ebpf.RunOptions{Data: in, DataOut: out}
	verdict, err := l.objects.NodensAnswer.Run(&opts)
	if err != nil {
		l.t.Fatal(err)
	}
	return verdict, opts.DataOut
}

// ask packs a question as a client sends it.
func ask(t testing.TB, name string, qtype uint16, edit func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Id = 0x1234
	if edit != nil {
		edit(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answerTo makes what the agent would put for query: its reply, of records.
func answerTo(t testing.TB, query []byte, edit func(*wire.Reply)) *Answer {
	t.Helper()
	q := new(wire.Query)
	if q.Parse(query) != wire.Serve {
		t.Fatal("no query")
	}
	var r wire.Reply
	r.Start(nil, q)
	edit(&r)
	return &Answer{Door: 7, Query: q, Reply: r.Finish(512), MaxSize: 65535}
}

func (l *lab) put(a *Answer) {
	l.t.Helper()
	cluster, _ := l.Epochs()
	a.Mark, a.Claim = cluster.Mark(5), new(hits)
	if !l.Put(a) {
		l.t.Fatal("not put")
	}
}

// hits is an owner.
type hits uint64

func (h *hits) Owner() Owner                   { return h }
func (h *hits) Hits(n uint64, _ time.Duration) { *h += hits(n) }

func TestAnswers(t *testing.T) {
	l := newLab(t)
	for _, w := range []struct {
		what     string
		from, to netip.AddrPort
	}{{"IPv4", client4, door4}, {"IPv6", client6, door6}} {
		t.Run(w.what, func(t *testing.T) {
			query := ask(t, "web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
			a := answerTo(t, query, func(r *wire.Reply) {
				r.SetAuthoritative()
				r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7})
			})
			want := bytes.Clone(a.Reply)
			l.put(a)
			verdict, out := l.run(frame(w.from, w.to, query))
			if verdict != redirected {
				t.Fatalf("verdict %d, counters %v", verdict, l.Counters())
			}
			back := frame(w.to, w.from, want)
			copy(back[:12], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
			// The reply is a packet of its own.
			same(t, out, back)
		})
	}
	_ = clock.Now
}

// same compares two frames but for what a sender chooses.
func same(t *testing.T, got, want []byte) {
	t.Helper()
	if got[12] == 8 && len(got) == len(want) {
		copy(want[18:26], []byte{0, 0, 0x40, 0, 64, 17, 0, 0})
		binary.LittleEndian.PutUint16(want[24:], ^uint16(fold(sumOf(want[14:34], 0))))
	} else if len(got) == len(want) {
		want[21] = 64
	}
	copy(want[:12], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	copy(want[:6], got[:6])
	copy(want[6:12], got[6:12])
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func BenchmarkRun(b *testing.B) {
	l := newLab(b)
	query := ask(b, "web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	l.put(answerTo(b, query, func(r *wire.Reply) {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7})
	}))
	in := frame(client4, door4, query)
	_, took, err := l.objects.NodensAnswer.Benchmark(in, b.N, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(took.Nanoseconds()), "ns/run")
	b.Log(l.Counters())
	_ = unsafe.Sizeof(programSlot{})
}
