package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
	"github.com/nodens-dns/nodens/test/soak"
)

// passedOn is TCX_NEXT.
const passedOn = 1<<32 - 1

// maxFrame is the longest frame for a test run: four times the longest message.
const maxFrame = 2 << 10

// compare runs the program on a frame and reports whether it was answered. The result must
// equal the model's, byte for byte.
func (m *model) compare(t testing.TB, in []byte) bool {
	t.Helper()
	m.Heartbeat()
	verdict, out := m.runAnswer(in)
	want, answered := m.reply(in)
	switch {
	case answered && verdict != redirected, !answered && verdict != passedOn:
		t.Fatalf("verdict %d, the model answers: %v\n%x\n%v", int32(verdict), answered, in, m.Counters().Results)
	case !answered && !bytes.Equal(out, in):
		t.Fatalf("the frame was passed on as\n%x, and was\n%x", out, in)
	case answered && !equalFrames(out, want):
		t.Fatalf("the answer to\n%x is\n%x, want\n%x", in, out, want)
	}
	return answered
}

// equalFrames compares frames. A wrong UDP checksum may have either of the two
// representations of zero.
func equalFrames(got, want []byte) bool {
	if len(got) != len(want) || len(got) < 54 {
		return false
	}
	at := 14 + 20 + 6
	if got[12] != 8 {
		at = 14 + 40 + 6
	}
	got, want = bytes.Clone(got), bytes.Clone(want)
	for _, b := range [][]byte{got, want} {
		if b[at] == 0xFF && b[at+1] == 0xFF {
			b[at], b[at+1] = 0, 0
		}
	}
	return bytes.Equal(got, want)
}

// FuzzProgram checks that every frame is either answered as the agent would answer it or
// passed on unchanged.
func FuzzProgram(f *testing.F) {
	m, queries := newModel(f)
	for _, q := range queries {
		f.Add(frame(client4, listener4, q))
		f.Add(frame(client6, listener6, q))
	}
	for _, in := range unusualFrames(f) {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !isRunnable(in) {
			t.Skip("the kernel takes no test run of it")
		}
		m.testProgram.t = t
		m.compare(t, in)
	})
}

// isRunnable reports whether the kernel accepts the frame for a test run. It rejects
// truncated headers.
func isRunnable(in []byte) bool {
	if len(in) < 14 || len(in) > maxFrame {
		return false
	}
	switch binary.BigEndian.Uint16(in[12:]) {
	case 0x0800:
		return len(in) >= 14+20
	case 0x86DD:
		return len(in) >= 14+40
	}
	return true
}

// unusualFrames returns frames that each differ in one way from a frame that is answered,
// and must not be answered themselves.
func unusualFrames(t testing.TB) (all [][]byte) {
	query := ask(t, "web.default.svc.cluster.local.", dns.TypeA, nil)
	four, six := frame(client4, listener4, query), frame(client6, listener6, query)
	with := func(in []byte, edit func([]byte) []byte) { all = append(all, edit(bytes.Clone(in))) }
	set := func(at int, to ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], to); return b }
	}
	for _, edit := range []func([]byte) []byte{
		set(12, 0x08, 0x06), set(14, 0x46), set(14, 0x55), set(20, 0x20, 0), set(20, 0, 1), set(20, 0x80, 0), set(23, 6),
		set(26, 10, 0, 0, 1), set(30, 10, 0, 0, 1), set(34, 0, 0), set(36, 0, 54), set(38, 0, 9), set(16, 0, 60),
		func(b []byte) []byte { return append(b, 0) }, func(b []byte) []byte { return b[:41] }, func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { b[17]++; return append(b, 0) }, // after the UDP datagram
	} {
		with(four, edit)
	}
	mapped := append(make([]byte, 10), 0xFF, 0xFF)
	for _, edit := range []func([]byte) []byte{
		set(12, 0x08, 0x00), set(20, 44), set(20, 0), set(60, 0, 0), set(18, 0, 1),
		set(22, append(mapped, client4.Addr().AsSlice()...)...), set(38, append(mapped, listener4.Addr().AsSlice()...)...),
		func(b []byte) []byte { return append(b, 0) }, func(b []byte) []byte { return b[:61] },
	} {
		with(six, edit)
	}
	edns := ask(t, "web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
	for _, edit := range []func([]byte) []byte{
		func(b []byte) []byte { b = padded(b, 7); b[len(b)-8]--; return b },  // an option that is too short
		func(b []byte) []byte { b = padded(b, 7); b[len(b)-10]--; return b }, // another option
		func(b []byte) []byte { b[len(b)-4] = 1; return b },
		func(b []byte) []byte { b[len(b)-5] = 1; return b },
		func(b []byte) []byte { return append(b, 0) },
		func([]byte) []byte { return ask(t, "[a`z}.", dns.TypeA, nil) },
		func([]byte) []byte { return ask(t, "{a@z}.", dns.TypeA, nil) },
	} {
		all = append(all, frame(client4, listener4, edit(bytes.Clone(edns))))
	}
	return all
}

// TestUnusualFrames checks that frames that only look like queries are passed on.
func TestUnusualFrames(t *testing.T) {
	m, _ := newModel(t)
	for i, in := range unusualFrames(t) {
		if m.compare(t, in) {
			t.Errorf("%d is answered: %x", i, in)
		}
	}
}

// TestBrokenPackets runs the program on the packets that the agent's readers are tested
// with, in correct and in broken headers. Complete queries must be answered in between.
func TestBrokenPackets(t *testing.T) {
	m, queries := newModel(t)
	for _, q := range queries {
		for _, in := range [][]byte{frame(client4, listener4, q), frame(client6, listener6, q)} {
			if !m.compare(t, in) {
				t.Fatalf("a query is not answered: %x", q)
			}
		}
	}
	packets := soak.Choose(20_000, 100_000)
	const seed = 8
	mutator, r := broken.New(seed, 1, queries), rand.New(rand.NewPCG(seed, 2))
	answered := 0
	for i := range packets {
		packet := mutator.Next()
		if len(packet) > maxFrame-62 {
			continue
		}
		in := frame(client4, listener4, packet)
		if i%2 == 0 {
			in = frame(client6, listener6, packet)
		}
		if i%4 == 0 {
			in[r.IntN(62)%len(in)] ^= 1 << r.IntN(8)
		}
		if i%100 == 0 {
			m.change(r.Uint32())
		}
		if m.compare(t, in) {
			answered++
		}
	}
	t.Logf("%d of %d broken packets are answered: %v", answered, packets, m.Counters().Results)
	for _, result := range []string{"unsupported", "miss", "answered", "unknown_client"} {
		if m.Counters().Results[result] == 0 {
			t.Errorf("nothing was counted as %q", result)
		}
	}
	if answered < packets/100 || answered > packets/2 {
		t.Errorf("%d of %d broken packets are answered: that is no mixture", answered, packets)
	}
}
