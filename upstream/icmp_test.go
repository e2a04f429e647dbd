package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forger sends ICMP errors in the name of a host that has nothing to do with anything. It
// needs root.
type forger struct {
	t    *testing.T
	conn *net.IPConn
}

func newForger(t *testing.T) *forger {
	t.Helper()
	conn, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: net.IPv4(127, 9, 9, 9)})
	if errors.Is(err, syscall.EPERM) {
		t.Skip("raw sockets need root")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &forger{t, conn}
}

// closed says to from that nobody is at to, about a datagram that begins with query.
func (f *forger) closed(from, to netip.AddrPort, query []byte) {
	f.t.Helper()
	a, b := from.Addr().As4(), to.Addr().As4()
	m := []byte{3, 3, 0, 0, 0, 0, 0, 0} // destination unreachable, port
	size := uint16(20 + 8 + 40)
	m = append(m, 0x45, 0)
	m = binary.BigEndian.AppendUint16(m, size)
	m = append(m, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	m = append(append(m, a[:]...), b[:]...)
	m = binary.BigEndian.AppendUint16(m, from.Port())
	m = binary.BigEndian.AppendUint16(m, to.Port())
	m = append(m, 0, 48, 0, 0)
	m = append(m, query...)
	sum := uint32(0)
	for i := 0; i < len(m); i += 2 {
		sum += uint32(m[i]) << 8
		if i+1 < len(m) {
			sum += uint32(m[i+1])
		}
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	if _, err := f.conn.WriteToIP(m, &net.IPAddr{IP: a[:]}); err != nil {
		f.t.Fatal(err)
	}
}

// TestForgedICMP: who knows a port, and not the ID of a query on it, ends no flight by
// saying that nobody is there; who knows the whole query ends that one alone.
func TestForgedICMP(t *testing.T) {
	forge := newForger(t)
	f := startFake(t, holding)
	p, via := lone(t, f, udpOptions{maxInFlight: 64, maxOpen: 1, expire: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var all []chan error
	for range 8 {
		all = append(all, hold(t, p, via, ctx))
	}
	eventually(t, "the server has all queries", func() bool { return len(f.requests()) == 8 })
	from := f.requests()[0].from
	query := queryOf(via, 0)
	wrong := append([]byte(nil), query...)
	via.mu.Lock()
	var s *udpSocket
	for q := range via.live {
		s = q
	}
	for s.indexOf(binary.BigEndian.Uint16(wrong)) >= 0 {
		wrong[1]++
	}
	via.mu.Unlock()
	strays := func() uint64 { return p.Stats().Servers[0].UnexpectedReplies }
	other := append([]byte(nil), query...)
	other[headerLen+1] ^= 1 // the ID, and another question
	for i, forged := range [][]byte{wrong, wrong[:2], other} {
		forge.closed(from, f.addr, forged)
		eventually(t, "the message is read", func() bool { return strays() == uint64(i+1) })
	}
	for range 10 { // no more than the ports
		forge.closed(from, f.addr, nil)
	}
	ask(t, p, "next.test.") // the errors before it, if they are not read yet, cost it nothing
	if n := via.inFlightCount(); n != 8 {
		t.Fatalf("%d of 8 queries are in flight", n)
	}
	forge.closed(from, f.addr, query[:headerLen])
	eventually(t, "one query ends, and is asked again", func() bool { return len(f.requests()) == 10 })
	if n := via.inFlightCount(); n != 8 {
		t.Errorf("%d queries are in flight, want 8", n)
	}
	cancel()
	for _, held := range all {
		if err := <-held; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// queryOf is the i-th query on via's only port.
func queryOf(via *udpTransport, i int) []byte {
	via.mu.Lock()
	defer via.mu.Unlock()
	for s := range via.live {
		return append([]byte(nil), s.queries[i].message()...)
	}
	return nil
}

// TestICMPHint: a message that tells no more than the port has another server asked at
// once, within the budget, and the answer of the first one is still taken.
func TestICMPHint(t *testing.T) {
	forge := newForger(t)
	slow, other := startFake(t, holding), startFake(t, holding)
	cfg := directive(slow, other)
	cfg.MaxFails, cfg.ReadTimeout = 0, time.Hour
	p := start(t, cfg)
	times := &p.servers()[0].udpRTT // so slow that nobody is asked beside it for half an hour
	times.p95.Store(int64(time.Hour))
	times.samples.Store(minSamples)
	p.hedgeBudget.credit.Store(queriesPerHedge)
	q := question(t, "hold.test.")
	done := make(chan error, 1)
	go func() {
		_, err := p.Exchange(t.Context(), q, false)
		done <- err
	}()
	eventually(t, "the first server is asked", func() bool { return len(slow.requests()) == 1 })
	r := slow.requests()[0]
	forge.closed(r.from, slow.addr, nil)
	eventually(t, "the second server is asked", func() bool { return len(other.requests()) == 1 })
	if n := p.Stats().Servers[1].Hedges; n != 1 {
		t.Errorf("%d hedges are counted", n)
	}
	answers(r)
	if err := <-done; err != nil {
		t.Errorf("the answer that came late: %v", err)
	}
	if st := p.Stats().Servers[0]; st.Down || st.Suspected {
		t.Errorf("a message takes the server out of service: down %t, doubted %t", st.Down, st.Suspected)
	}
}
