// Inside the package: the tests read the port and the ID of a query in flight.

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

// icmpForger sends ICMP errors from an unrelated host. It needs root.
type icmpForger struct {
	t    *testing.T
	conn *net.IPConn
}

func newICMPForger(t *testing.T) *icmpForger {
	t.Helper()
	conn, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: net.IPv4(127, 9, 9, 9)})
	if errors.Is(err, syscall.EPERM) {
		t.Skip("raw sockets need root")
	}
	noError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &icmpForger{t, conn}
}

// sendPortUnreachable tells from that to's port is closed, quoting a datagram that begins
// with query.
func (f *icmpForger) sendPortUnreachable(from, to netip.AddrPort, query []byte) {
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

// TestForgedICMP: an attacker who knows a port but not the ID of a query on it can't fail
// queries; one who knows the whole query fails only that one.
func TestForgedICMP(t *testing.T) {
	forge := newICMPForger(t)
	f := startFake(t, holdReplies)
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 64, maxOpen: 1, expire: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var all []chan error
	for range 8 {
		all = append(all, startHeld(t, p, via, ctx))
	}
	eventually(t, "the server has all queries", func() bool { return len(f.requests()) == 8 })
	from := f.requests()[0].from
	query := queryInFlight(via, 0)
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
	other[headerLen+1] ^= 1 // the right ID, another question
	for i, forged := range [][]byte{wrong, wrong[:2], other} {
		forge.sendPortUnreachable(from, f.addr, forged)
		eventually(t, "the message is read", func() bool { return strays() == uint64(i+1) })
	}
	for range 10 { // only the ports
		forge.sendPortUnreachable(from, f.addr, nil)
	}
	mustAnswer(t, p, "next.test.") // errors that are still queued do not affect it
	if n := via.inFlightCount(); n != 8 {
		t.Fatalf("%d of 8 queries are in flight", n)
	}
	forge.sendPortUnreachable(from, f.addr, query[:headerLen])
	eventually(t, "one query ends, and is asked again", func() bool { return len(f.requests()) == 10 })
	count(t, via.inFlightCount(), 8, "queries are in flight")
	cancel()
	for _, held := range all {
		if err := <-held; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// queryInFlight returns the i-th query on via's only socket.
func queryInFlight(via *udpTransport, i int) []byte {
	via.mu.Lock()
	defer via.mu.Unlock()
	for s := range via.live {
		return append([]byte(nil), s.queries[i].message()...)
	}
	return nil
}

// TestICMPSoftError: an error that quotes only the ports makes the exchange ask another
// server at once, within the budget, and the first one's answer is still accepted.
func TestICMPSoftError(t *testing.T) {
	forge := newICMPForger(t)
	slow, other := startFake(t, holdReplies), startFake(t, holdReplies)
	cfg := forwardTo(slow, other)
	cfg.MaxFails, cfg.ReadTimeout = 0, time.Hour
	p := newPool(t, cfg)
	times := &p.servers()[0].udpRTT // so slow that no hedge happens for half an hour
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
	forge.sendPortUnreachable(r.from, slow.addr, nil)
	eventually(t, "the second server is asked", func() bool { return len(other.requests()) == 1 })
	count(t, p.Stats().Servers[1].Hedges, 1, "hedges are counted")
	answerOK(r)
	if err := <-done; err != nil {
		t.Errorf("the answer that came late: %v", err)
	}
	if st := p.Stats().Servers[0]; st.Down || st.Suspected {
		t.Errorf("a message takes the server out of service: down %t, doubted %t", st.Down, st.Suspected)
	}
}
