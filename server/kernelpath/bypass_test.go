// These tests use objects, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// bypasses is a BypassReporter that keeps what is reported.
type bypasses map[Bypass]uint64

// ReportBypass implements BypassReporter.
func (b bypasses) ReportBypass(p Bypass, n uint64) { b[p] += n }

var (
	other4 = netip.MustParseAddr("192.0.2.53")
	other6 = netip.MustParseAddr("2001:db8::53")
	doh4   = netip.MustParseAddr("192.0.2.44")
	doh6   = netip.MustParseAddr("2001:db8::44")
)

// runCount runs nodens_count on a frame.
func (l *testProgram) runCount(in []byte) {
	l.t.Helper()
	opts := ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048)}
	if verdict, err := l.objects.NodensCount.Run(&opts); err != nil || verdict != passedOn || !bytes.Equal(opts.DataOut, in) {
		l.t.Fatalf("verdict %d, %v, %x", int32(verdict), err, opts.DataOut)
	}
}

// newBypassTest returns a Program that counts packets to other servers, and what it reports.
func newBypassTest(t *testing.T) (*testProgram, bypasses) {
	reported := make(bypasses)
	p := &testProgram{Program: openWith(t, Options{Bypass: &BypassOptions{Reporter: reported, DoH: []netip.Addr{doh4, doh6}}}), t: t}
	if err := p.SetListeners(map[netip.AddrPort]uint32{listener4: 7, listener6: 7}); err != nil {
		t.Fatal(err)
	}
	return p, reported
}

// segment returns a TCP packet with flags.
func segment(from, to netip.AddrPort, flags byte) []byte {
	b := frame(from, to, make([]byte, 12))
	at := 34
	if from.Addr().Is6() {
		at = 54
		b[20] = 6
	} else {
		b[23] = 6
		binary.LittleEndian.PutUint16(b[24:], 0)
		binary.LittleEndian.PutUint16(b[24:], ^uint16(fold(sumOf(b[14:34], 0))))
	}
	clear(b[at+4:])
	b[at+12], b[at+13] = 5<<4, flags
	return b
}

// TestBypass: which packets count, and that each is passed on as it was.
func TestBypass(t *testing.T) {
	p, reported := newBypassTest(t)
	msg := make([]byte, 17)
	udp := func(from netip.AddrPort, to netip.Addr, port uint16) []byte {
		return frame(from, netip.AddrPortFrom(to, port), msg)
	}
	tcp := func(from netip.AddrPort, to netip.Addr, port uint16) []byte {
		return segment(from, netip.AddrPortFrom(to, port), 2)
	}
	with := func(in []byte, at int, to ...byte) []byte {
		b := slices.Clone(in)
		copy(b[at:], to)
		return b
	}
	none := netip.AddrPort{}
	for _, c := range []struct {
		name   string
		in     []byte
		client netip.AddrPort
		to     netip.AddrPort // none: the packet does not count
		tcp    bool
		proto  string
	}{
		{"UDP", udp(client4, other4, 53), client4, netip.AddrPortFrom(other4, 53), false, "udp"},
		{"UDP over IPv6", udp(client6, other6, 53), client6, netip.AddrPortFrom(other6, 53), false, "udp"},
		{"QUIC", udp(client4, other4, 853), client4, netip.AddrPortFrom(other4, 853), false, "quic"},
		{"TCP", tcp(client4, other4, 53), client4, netip.AddrPortFrom(other4, 53), true, "tcp"},
		{"TCP over IPv6", tcp(client6, other6, 53), client6, netip.AddrPortFrom(other6, 53), true, "tcp"},
		{"TLS", tcp(client4, other4, 853), client4, netip.AddrPortFrom(other4, 853), true, "tls"},
		{"TLS over IPv6", tcp(client6, other6, 853), client6, netip.AddrPortFrom(other6, 853), true, "tls"},
		{"SYN with ECN", with(tcp(client4, other4, 853), 34+13, 0xC2), client4, netip.AddrPortFrom(other4, 853), true, "tls"},
		{"HTTPS", tcp(client4, doh4, 443), client4, netip.AddrPortFrom(doh4, 443), true, "https"},
		{"HTTPS over IPv6", tcp(client6, doh6, 443), client6, netip.AddrPortFrom(doh6, 443), true, "https"},
		{"HTTP/3", udp(client4, doh4, 443), client4, netip.AddrPortFrom(doh4, 443), false, "http3"},
		{"HTTPS to a server that is not listed", tcp(client4, other4, 443), client4, none, false, ""},
		{"HTTP/3 to a server that is not listed", udp(client6, other6, 443), client6, none, false, ""},
		{"no packet of DNS", udp(client4, other4, 5353), client4, none, false, ""},
		{"a later packet over TCP", segment(client4, netip.AddrPortFrom(other4, 53), 0x10), client4, none, false, ""},
		{"a reply over TCP", segment(client4, netip.AddrPortFrom(other4, 53), 0x12), client4, none, false, ""},
		{"to a listener", udp(client4, listener4.Addr(), 53), client4, none, false, ""},
		{"to a listener over IPv6", udp(client6, listener6.Addr(), 53), client6, none, false, ""},
		{"the first fragment", with(udp(client4, other4, 53), 20, 0x20), client4, none, false, ""},
		{"a later fragment", with(udp(client4, other4, 53), 20, 0, 9), client4, none, false, ""},
		{"IPv4 options", with(udp(client4, other4, 53), 14, 0x46), client4, none, false, ""},
		{"an IPv6 extension header", with(udp(client6, other6, 53), 20, 44), client6, none, false, ""},
		{"ICMP", with(udp(client4, other4, 53), 23, 1), client4, none, false, ""},
		{"ARP", with(udp(client4, other4, 53), 12, 8, 6), client4, none, false, ""},
		{"a short packet", udp(client4, other4, 53)[:40], client4, none, false, ""},
		{"a short packet over IPv6", udp(client6, other6, 53)[:60], client6, none, false, ""},
	} {
		clear(reported)
		const each = 3
		for range each {
			p.runCount(c.in)
		}
		p.Sweep()
		p.Sweep()
		want := bypasses{}
		if c.to != none {
			b := Bypass{c.client.Addr(), c.to, c.tcp}
			if want[b] = each; b.Protocol() != c.proto {
				t.Errorf("%s: protocol %q, want %q", c.name, b.Protocol(), c.proto)
			}
		}
		if !maps.Equal(reported, want) {
			t.Errorf("%s: %v, want %v", c.name, reported, want)
		}
	}
}

// TestBypassFull: with more servers than the map has room for, the newest ones are there and count from one.
func TestBypassFull(t *testing.T) {
	p, reported := newBypassTest(t)
	room := int(p.objects.Bypasses.MaxEntries())
	addr := netip.MustParseAddr("198.18.0.0")
	send := func(n int) (last Bypass) {
		for range n {
			addr = addr.Next()
			last = Bypass{client4.Addr(), netip.AddrPortFrom(addr, 53), false}
			p.runCount(frame(client4, last.Server, make([]byte, 17)))
		}
		p.Sweep()
		return last
	}
	first := send(1)
	for range 8 {
		if last := send(room / 2); reported[last] != 1 {
			t.Fatalf("%v counts %d times", last, reported[last])
		}
		clear(reported)
	}
	if n := len(p.bypass.reported); n == 0 || n > room {
		t.Errorf("%d entries in a map with room for %d", n, room)
	}
	if n, ok := p.bypass.reported[programBypass{Client: newClient(first.Client), Server: newClient(first.Server.Addr()), Port: 53 << 8}]; ok {
		t.Errorf("the oldest entry is still there, with %d", n)
	}
	p.runCount(frame(client4, first.Server, make([]byte, 17)))
	p.Sweep()
	if reported[first] != 1 {
		t.Errorf("an entry that was replaced counts %d times, want once", reported[first])
	}
}

// TestBypassAttached: with the option an interface has the program, behind nodens_answer, which that does not keep from
// answering; a foreign program between them does. Without the option no interface has it.
func TestBypassAttached(t *testing.T) {
	newAdmissionTest(t) // has two interfaces
	p, _ := newBypassTest(t)
	off := openWith(t, Options{})
	if n := off.objects.Bypasses.MaxEntries(); n != 1 {
		t.Errorf("without the option the map has room for %d entries", n)
	}
	answers, err := p.Update(portA, false)
	if err != nil || !answers {
		t.Fatalf("answers: %v, %v", answers, err)
	}
	names := func(ifindex int) (list []string) {
		programs, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Fatal(err)
		}
		for _, there := range programs.Programs {
			list = append(list, programName(there.ID))
		}
		return list
	}
	check.Equal(t, []string{"nodens_answer", "nodens_count"}, names(portA), "programs with the option")
	if _, err := off.Update(portB, false); err != nil {
		t.Fatal(err)
	}
	check.Equal(t, []string{"nodens_answer"}, names(portB), "programs without the option")
	if answers, err = p.Update(portA, false); err != nil || !answers { // the program does not look like one that is bypassed
		t.Errorf("answers at the next check: %v, %v", answers, err)
	}
	// A foreign program between them must not be bypassed.
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "policy", Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	check.NoError(t, err)
	defer foreign.Close()
	between, err := link.AttachTCX(link.TCXOptions{Interface: portA, Program: foreign, Attach: ebpf.AttachTCXIngress, Anchor: link.AfterProgram(p.objects.NodensAnswer)})
	check.NoError(t, err)
	check.Equal(t, []string{"nodens_answer", "policy", "nodens_count"}, names(portA), "programs with a foreign one")
	if answers, err = p.Update(portA, false); err != nil || answers {
		t.Errorf("answers beside a foreign program: %v, %v", answers, err)
	}
	check.NoError(t, between.Close())
	p.Detach(portA)
	check.Equal(t, []string(nil), names(portA), "programs after Detach")
}

// TestBypassServers: as many DoH servers as documented fit.
func TestBypassServers(t *testing.T) {
	var list []netip.Addr
	for i := range MaxDoH {
		list = append(list, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	reported := make(bypasses)
	p := &testProgram{Program: openWith(t, Options{Bypass: &BypassOptions{Reporter: reported, DoH: list}}), t: t}
	for _, addr := range list {
		p.runCount(segment(client4, netip.AddrPortFrom(addr, 443), 2))
	}
	p.Sweep()
	if len(reported) != MaxDoH {
		t.Errorf("packets to %d servers count, want %d", len(reported), MaxDoH)
	}
	if _, err := Open(Options{Bypass: &BypassOptions{Reporter: reported, DoH: append(list, other4)}}); err == nil {
		t.Errorf("no error with %d servers", MaxDoH+1)
	}
}

// BenchmarkBypass measures what the program costs for a packet that it counts, and for one that it does not.
func BenchmarkBypass(b *testing.B) {
	p := &testProgram{Program: openWith(b, Options{Bypass: &BypassOptions{Reporter: make(bypasses)}}), t: b}
	for name, in := range map[string][]byte{
		"counted": frame(client4, netip.AddrPortFrom(other4, 53), make([]byte, 17)), "other": segment(client4, netip.AddrPortFrom(other4, 8080), 0x10),
	} {
		b.Run(name, func(b *testing.B) {
			const runs = 10_000
			sum := time.Duration(0)
			for b.Loop() {
				_, took, err := p.objects.NodensCount.Benchmark(in, runs, nil)
				if err != nil {
					b.Fatal(err)
				}
				sum += took // of one run
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/run")
		})
	}
}
