package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestHostile is a run that is short enough for every day: each mutation meets each
// packet of the corpus a few times, and there are more idle connections than the
// agent takes.
func TestHostile(t *testing.T) {
	p := plan{
		packets: soak.Choose(80_000, 300_000), warmUp: soak.Choose(40_000, leastWarmUp),
		seed: 1, idle: 1500, slow: 20, dir: t.TempDir(),
	}
	if testing.Short() {
		p.packets, p.idle = 20_000, 0
	}
	r, err := p.run(t.Context())
	check.NoError(t, err)
	t.Logf("\n%s", r)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	if n := r.asked.Load(); n < uint64(p.packets/(maxOutstanding+1)) || r.askedTCP.Load() == 0 || r.probed.Load() == 0 {
		t.Errorf("%d well-formed queries over UDP, %d over TCP, %d for broken names", n, r.askedTCP.Load(), r.probed.Load())
	}
	if p.idle > 0 && r.end.counted[cacheEvictions] == 0 {
		t.Error("the idle connections never met the agent's limit")
	}
}

// TestMutator: the same seed sends the same packets, another seed others, and each
// mutation changes packets.
func TestMutator(t *testing.T) {
	queries := packets(t)
	const n = 20_000
	sum := func(seed, number uint64) (all [][]byte) {
		m := broken.New(seed, number, queries)
		for range n {
			all = append(all, bytes.Clone(m.Next()))
		}
		for i, used := range m.Used {
			if used == 0 {
				t.Errorf("%q was never used", broken.Names()[i])
			}
		}
		return all
	}
	first := sum(1, 1)
	if !slices.EqualFunc(first, sum(1, 1), bytes.Equal) {
		t.Error("the same seed sends other packets")
	}
	for _, other := range [][2]uint64{{2, 1}, {1, 2}} {
		if slices.EqualFunc(first, sum(other[0], other[1]), bytes.Equal) {
			t.Errorf("seed %v sends the same packets", other)
		}
	}
}

func packets(t *testing.T) [][]byte {
	t.Helper()
	queries, err := corpus()
	check.NoError(t, err)
	return queries
}

// TestShapes: the mutator makes the packets that the run is about.
func TestShapes(t *testing.T) {
	seen := map[string]int{}
	m := broken.New(1, 1, packets(t))
	for range 200_000 {
		b := m.Next()
		count := func(what string, is bool) {
			if is {
				seen[what]++
			}
		}
		count("empty", len(b) == 0)
		count("one byte", len(b) == 1)
		count("a bare header", len(b) == broken.HeaderLen)
		count("more than 60,000 bytes", len(b) > 60_000)
		if len(b) < broken.HeaderLen+2 {
			continue
		}
		count("a response", b[2]&0x80 != 0)
		count("another opcode", b[2]&0x78 != 0)
		count("65,535 records", bytes.Contains(b[4:broken.HeaderLen], []byte{0xFF, 0xFF}))
		count("a qname that is a pointer to itself", b[12] == 0xC0 && b[13] == 12)
		count("a qname that points forward", b[12] == 0xC0 && b[13] > 12)
		count("a qname that points into the header", b[12] == 0xC0 && b[13] < 12)
		for _, r := range broken.ParseLayout(b).Records {
			if binary.BigEndian.Uint16(b[r.Data-10:]) == broken.TypeOPT {
				count("an OPT of no bytes", binary.BigEndian.Uint16(b[r.Data-8:]) == 0)
				count("an OPT of 65,535 bytes", binary.BigEndian.Uint16(b[r.Data-8:]) == 0xFFFF)
				count("an OPT of another version", b[r.Data-5] > 1)
			}
		}
	}
	for _, what := range []string{"empty", "one byte", "a bare header", "more than 60,000 bytes", "a response", "another opcode",
		"65,535 records", "a qname that is a pointer to itself", "a qname that points forward", "a qname that points into the header",
		"an OPT of no bytes", "an OPT of 65,535 bytes", "an OPT of another version"} {
		if seen[what] < 5 {
			t.Errorf("%s: %d of 200,000 packets", what, seen[what])
		}
	}
}

// TestLayout reads every packet of the corpus as miekg/dns does.
func TestLayout(t *testing.T) {
	for _, packet := range packets(t) {
		m := new(dns.Msg)
		check.NoError(t, m.Unpack(packet))
		l := broken.ParseLayout(packet)
		if want := dns.CountLabel(m.Question[0].Name) + 1; len(l.Labels) != want || len(l.Records) != len(m.Extra) {
			t.Errorf("%s: %d labels, want %d; %d records, want %d", m.Question[0].Name, len(l.Labels), want, len(l.Records), len(m.Extra))
		}
		want := uint16(dns.MinMsgSize)
		if opt := m.IsEdns0(); opt != nil {
			want = max(want, opt.UDPSize())
		}
		if got := maxReplySize(packet); got != want {
			t.Errorf("%s allows %d bytes, want %d", m.Question[0].Name, got, want)
		}
	}
}

// TestAnswers: what the script answers passes its check, and what is wrong with an
// answer is found.
func TestAnswers(t *testing.T) {
	m := broken.New(1, 1, nil)
	q := newQuestion(7)
	spoil := map[string]func(*dns.Msg){
		"nothing":          func(*dns.Msg) {},
		"another ID":       func(m *dns.Msg) { m.Id++ },
		"no response":      func(m *dns.Msg) { m.Response = false },
		"another rcode":    func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure },
		"cut":              func(m *dns.Msg) { m.Truncated = true },
		"another question": func(m *dns.Msg) { m.Question[0].Qtype++ },
		"another case":     func(m *dns.Msg) { m.Question[0].Name = "U7.GOOD.TEST." },
		"no answer":        func(m *dns.Msg) { m.Answer = nil },
		"another answer":   func(m *dns.Msg) { m.Answer[0].(*dns.A).A = net.IPv4(192, 0, 2, 1) },
		"two answers":      func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer[0]) },
		"another OPT":      func(m *dns.Msg) { m.SetEdns0(1232, false) },
	}
	for what, f := range spoil {
		query := q.query(m.Rand)
		query.Question[0].Name = q.name
		query.Extra = nil
		got := correctReply(query)
		f(got)
		if err := q.check(query, got, false); (err == nil) != (what == "nothing") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFaults lets a server behave in ways that a run must notice.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply func(packet []byte) [][]byte // to each packet
		want  string                       // in the faults; none if empty
	}{
		{"a good server", func(p []byte) [][]byte {
			if noReplyExpected(p) {
				return nil
			}
			return [][]byte{formErr(p)}
		}, ""},
		{"a mirror", func(p []byte) [][]byte { return [][]byte{formErr(p)} }, "must have no answer"},
		{"an echo", func(p []byte) [][]byte { return [][]byte{p} }, "no answer"},
		{"too long", func(p []byte) [][]byte { return [][]byte{append(formErr(p), make([]byte, dns.MaxMsgSize-30_000)...)} }, "to a client that takes"},
		{"garbage", func(p []byte) [][]byte { return [][]byte{append(formErr(p)[:4], 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF)} }, "can't be read"},
		{"twice", func(p []byte) [][]byte { return [][]byte{formErr(p), formErr(p)} }, "nobody waits for"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			check.NoError(t, err)
			defer conn.Close()
			go func() {
				buf := make([]byte, dns.MaxMsgSize)
				for {
					n, from, err := conn.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					for _, reply := range tt.reply(buf[:n]) {
						_, _ = conn.WriteToUDPAddrPort(reply, from)
					}
				}
			}()
			l := new(accounting)
			f, err := newFlooder(&agent{addr: conn.LocalAddr().(*net.UDPAddr).AddrPort()}, broken.New(1, 1, packets(t)), l)
			check.NoError(t, err)
			defer f.conn.Close()
			for range 4 {
				f.burst(2 * maxFaults) // so that even a server without answers shows at once
				f.await(0)
			}
			said := strings.Join(l.faults, "\n")
			if (tt.want == "") != (said == "") || !strings.Contains(said, tt.want) {
				t.Errorf("it noticed %q, want %q", said, tt.want)
			}
		})
	}
}

// formErr is a FORMERR of a header only, to any packet.
func formErr(packet []byte) []byte {
	b := make([]byte, broken.HeaderLen)
	copy(b, packet[:min(2, len(packet))])
	b[2], b[3] = 0x80, dns.RcodeFormatError
	return b
}

// TestSockets: the kernel's count of what a full buffer drops is found.
func TestSockets(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check.NoError(t, err)
	addr := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	check.NoError(t, conn.SetReadBuffer(4096))
	to, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(addr))
	check.NoError(t, err)
	defer to.Close()
	for range 100 {
		if _, err := to.Write(make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
	}
	drops, queued, err := sockets(addr)
	if err != nil || drops == 0 || drops >= 100 || queued == 0 {
		t.Errorf("%d drops, %d bytes queued, %v", drops, queued, err)
	}
	conn.Close()
	if _, _, err := sockets(netip.AddrPortFrom(addr.Addr(), addr.Port())); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a closed socket: %v", err)
	}
}
