// These tests use fold, sumOf and objects, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/reply"
)

var (
	listener4 = netip.MustParseAddrPort("169.254.20.10:53")
	listener6 = netip.MustParseAddrPort("[fd00::10]:53")
	client4   = netip.MustParseAddrPort("10.244.1.7:40001")
	client6   = netip.MustParseAddrPort("[fd00:1::7]:40001")
)

// testProgram is a Program with listeners and admitted clients.
type testProgram struct {
	*Program
	t testing.TB
}

func newTestProgram(t testing.TB) *testProgram {
	l := &testProgram{Program: openProgram(t), t: t}
	if err := l.SetListeners(map[netip.AddrPort]uint32{listener4: 7, listener6: 7}); err != nil {
		t.Fatal(err)
	}
	l.Heartbeat()
	l.admit(client4.Addr(), time.Hour)
	l.admit(client6.Addr(), time.Hour)
	return l
}

// admit makes a client ask and admits it for d.
func (l *testProgram) admit(addr netip.Addr, d time.Duration) {
	l.t.Helper()
	door := listener4
	if addr.Is6() {
		door = listener6
	}
	l.runAnswer(frame(netip.AddrPortFrom(addr, 4000), door, []byte("no query")))
	until := uint64(kernelNow() + d)
	l.client(addr).Passes[0].Until, l.client(addr).Passes[0].Renew = newStamp(until, 7), until
}

// newStamp returns a stamp as the program makes it.
func newStamp(time uint64, number uint32) uint64 {
	return time>>programBoundSTAMP_TIME<<programBoundSTAMP_BITS | uint64(number)
}

// client returns the program's state of a client; nil if it has none.
func (l *testProgram) client(addr netip.Addr) *programClientState {
	l.t.Helper()
	var n uint32
	key := programClient{Addr: listenerKey(netip.AddrPortFrom(addr, 0)).Addr}
	if err := l.objects.Clients.Lookup(&key, &n); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		l.t.Fatal(err)
	}
	return &l.clients.states[n]
}

// frame returns a query with its headers.
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
	binary.LittleEndian.PutUint16(b[at+6:], udpChecksum(b, at))
	return b
}

// udpChecksum returns the correct UDP checksum of the frame b, whose UDP header is at that
// offset and has checksum 0.
func udpChecksum(b []byte, at int) uint16 {
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

// runAnswer runs nodens_answer on a frame.
func (l *testProgram) runAnswer(in []byte) (verdict uint32, out []byte) {
	l.t.Helper()
	out = make([]byte, 2048)
	opts := ebpf.RunOptions{Data: in, DataOut: out}
	verdict, err := l.objects.NodensAnswer.Run(&opts)
	if err != nil {
		l.t.Fatal(err)
	}
	return verdict, opts.DataOut
}

// ask returns a packed query.
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

// answerTo returns the agent's answer to query, with the records that edit adds.
func answerTo(t testing.TB, query []byte, edit func(*wire.Reply)) *Answer {
	t.Helper()
	q := new(wire.Query)
	if q.Parse(query) != wire.Serve {
		t.Fatal("no query")
	}
	var r wire.Reply
	r.Start(nil, q)
	edit(&r)
	return &Answer{Listener: 7, Answer: reply.Answer{Query: q, Reply: r.Finish(512), Terms: reply.Terms{MaxSize: 65535}}}
}

func (l *testProgram) put(a *Answer) {
	l.t.Helper()
	cluster, _ := l.Epochs()
	a.Mark, a.Source = cluster.Mark(5), new(hits)
	if !l.Put(a) {
		l.t.Fatal("not put")
	}
}

// hits is a Source and a HitReporter.
type hits uint64

func (h *hits) HitReporter() HitReporter             { return h }
func (h *hits) ReportHits(n uint64, _ time.Duration) { *h += hits(n) }

// answers are replies of all forms, as functions of the query.
var answers = map[string]struct {
	qtype uint16
	reply func(*wire.Reply)
	put   func(*testProgram, *Answer) // sets further fields
	now   func([]byte)                // changes that the program makes to the reply
}{
	"an address": {dns.TypeA, func(r *wire.Reply) {
		r.SetAuthoritative()
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7})
	}, nil, nil},
	"several": {dns.TypeAAAA, func(r *wire.Reply) {
		for i := range 7 {
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeAAAA, 5, []byte{15: byte(i)})
		}
	}, nil, nil},
	"a name error": {dns.TypeA, func(r *wire.Reply) {
		r.SetRcode(wire.NXDomain)
		r.Add(wire.Authority, r.Suffix(7), wire.TypeSOA, 5, append([]byte("\x02ns\x03dns\xc0\x0c\x01h\xc0\x0c"), make([]byte, 20)...))
	}, func(l *testProgram, a *Answer) {
		cluster, _ := l.Epochs()
		v := cluster.AcquireValue()
		v.Store(0x01020304)
		a.Mark.Serial = v.Index
	}, func(b []byte) {
		copy(b[bytes.Index(b, []byte("\x01h\xc0\x0c"))+4:], []byte{1, 2, 3, 4})
	}},
	"TTLs that count down": {dns.TypeA, func(r *wire.Reply) {
		at := r.Add(wire.Answer, wire.AtQuestion, wire.TypeCNAME, 60, []byte("\x05other\xc0\x10"))
		r.Add(wire.Answer, at, wire.TypeA, 60, []byte{192, 0, 2, 1})
		r.Add(wire.Answer, at, wire.TypeTXT, 60, []byte("\x04text"))
		r.Add(wire.Answer, at, wire.TypeA, 60, []byte{192, 0, 2, 2})
	}, func(_ *testProgram, a *Answer) {
		a.CountsDown, a.Life = true, 60
		a.Ends = clock.Now() + 40*time.Second
		a.Expires = a.Ends
	}, func(b []byte) {
		for at := 0; at+4 < len(b); at++ {
			if binary.BigEndian.Uint32(b[at:]) == 60 && at > 12 && b[at-1] == 1 {
				b[at+3] = 40
			}
		}
	}},
	"no records": {dns.TypeMX, func(r *wire.Reply) { r.SetRcode(wire.NXDomain) }, nil, nil},
}

// TestAnswers checks that the program's replies equal the agent's, in complete packets, for
// every form of query and answer.
func TestAnswers(t *testing.T) {
	l := newTestProgram(t)
	n := 0
	for what, a := range answers {
		for _, way := range [...]struct{ from, to netip.AddrPort }{{client4, listener4}, {client6, listener6}} {
			for form, edit := range forms {
				for _, name := range []string{"web.default.svc.cluster.local.", "webs.default.svc.cluster.local.", "x.test.", strings.Repeat("long.", 25)} {
					l.Heartbeat() // on an emulated processor one does not last for all queries
					first := ask(t, name, a.qtype, edit)
					put := answerTo(t, first, a.reply)
					if len(put.Reply) == put.Query.QuestionEnd() {
						continue // nothing follows the question
					}
					cluster, _ := l.Epochs()
					cluster.Bump(5) // otherwise the existing answer is kept
					put.Mark, put.Source = cluster.Mark(5), new(hits)
					if a.put != nil {
						a.put(l, put)
					}
					want := bytes.Clone(put.Reply)
					if !l.Put(put) {
						t.Fatalf("%s, %s: not put", what, form)
					}
					if a.now != nil {
						a.now(want)
					}
					again := bytes.Clone(first)
					again[0], again[13] = 0x77, again[13]^0x20
					copy(want, again[:2])
					want[13] = again[13]
					verdict, out := l.runAnswer(frame(way.from, way.to, again))
					if verdict != redirected {
						t.Fatalf("%s, %s, %s: verdict %d, counters %v", what, form, name, int32(verdict), l.Counters())
					}
					checkPacket(t, out, frame(way.to, way.from, want))
					n++
				}
			}
		}
	}
	if got := l.Counters().Results["answered"]; int(got) != n {
		t.Errorf("%d answered, want %d", got, n)
	}
}

// forms are those of plain queries.
var forms = map[string]func(*dns.Msg){
	"bare":       nil,
	"no RD":      func(m *dns.Msg) { m.RecursionDesired = false },
	"AD":         func(m *dns.Msg) { m.AuthenticatedData = true },
	"CD":         func(m *dns.Msg) { m.CheckingDisabled = true },
	"EDNS":       func(m *dns.Msg) { m.SetEdns0(1232, false) },
	"EDNS, DO":   func(m *dns.Msg) { m.SetEdns0(4096, true) },
	"a tiny one": func(m *dns.Msg) { m.SetEdns0(3, true) },
	"padding": func(m *dns.Msg) {
		m.SetEdns0(1400, true)
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_PADDING{Padding: make([]byte, 61)})
	},
}

// checkPacket compares two frames, except for what the sender chooses.
func checkPacket(t *testing.T, got, want []byte) {
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

// BenchmarkProgram measures an answer by the kernel's clock: each in a run of its own, because a run leaves
// the reply in place of the query.
func BenchmarkProgram(b *testing.B) {
	b.Run("no limit", func(b *testing.B) { benchmarkAnswer(b, ClientLimit{}, false) })
	b.Run("limit", func(b *testing.B) { benchmarkAnswer(b, ClientLimit{Rate: 1e9, Burst: 1e6}, false) })
	b.Run("group", func(b *testing.B) { benchmarkAnswer(b, ClientLimit{}, true) })
}

// benchmarkAnswer measures an answer; grouped is one for a group of clients that depends on as many counters as
// possible.
func benchmarkAnswer(b *testing.B, limit ClientLimit, grouped bool) {
	l := newTestProgram(b)
	if err := l.limit.set(limit); err != nil {
		b.Fatal(err)
	}
	query := ask(b, "web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	a := answerTo(b, query, func(r *wire.Reply) { r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7}) })
	if cluster, cached := l.Epochs(); grouped {
		for i := range uint64(MaxMarks - 1) {
			a.More = append(a.More, cached.Mark(i))
		}
		a.Group = Group{Number: 1, Mark: cluster.Mark(6)}
		l.SetGroup(client4.Addr(), &a.Group)
	}
	l.put(a)
	l.clients.reporter = new(reports)
	if err := l.openSamples(); err != nil {
		b.Fatal(err)
	}
	l.admit(client4.Addr(), time.Hour)
	in, sum, runs := frame(client4, listener4, query), time.Duration(0), 0
	for b.Loop() {
		l.Heartbeat()
		_, took, err := l.objects.NodensAnswer.Benchmark(in, 1, nil)
		if err != nil {
			b.Fatal(err)
		}
		sum += took
		if runs++; runs%1000 == 0 {
			l.samples.read(l.clients.reporter)
		}
	}
	b.ReportMetric(float64(sum.Nanoseconds())/float64(runs), "ns/run")
	if n := l.Counters(); n.Results["answered"] != uint64(runs) || n.SamplesDropped != 0 {
		b.Errorf("%d runs: %v", runs, n)
	}
}
