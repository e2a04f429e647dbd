// This test uses udpReader, which is not exported.

package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// sentPacket is a query in the batch of a script.
type sentPacket struct {
	from netip.Addr
	name string
}

// scriptedSocket gives a reader the batches of a script, and notes after each what has been forwarded since the last one.
type scriptedSocket struct {
	noSocket
	t         *testing.T
	batches   [][]sentPacket
	upstream  *net.UDPConn
	forwarded [][]string
}

func (s *scriptedSocket) ReadBatch(b *udp.Batch) bool {
	s.forwarded = append(s.forwarded, s.received())
	if b.N = 0; len(s.batches) == 0 {
		return b.NoWait
	}
	for i, p := range s.batches[0] {
		msg, err := question(p.name, dns.TypeA).Pack()
		check.NoError(s.t, err)
		d := &b.Packets[i]
		d.N = copy(d.In[:], msg)
		d.From.Client = netip.AddrPortFrom(p.from, 4242)
		b.N++
	}
	s.batches = s.batches[1:]
	return true
}

// received reads what has arrived upstream. The loopback interface delivers a datagram before sendto(2) returns.
func (s *scriptedSocket) received() (names []string) {
	raw, err := s.upstream.SyscallConn()
	check.NoError(s.t, err)
	for buf := make([]byte, 512); ; {
		var n int
		var failed error
		check.NoError(s.t, raw.Read(func(fd uintptr) bool {
			n, failed = unix.Read(int(fd), buf)
			return true
		}))
		if failed != nil { // EAGAIN
			return names
		}
		m := new(dns.Msg)
		check.NoError(s.t, m.Unpack(buf[:n]))
		names = append(names, m.Question[0].Name)
	}
}

// TestReaderTurns: a reader forwards a few queries after each batch of a flood, one client after the other, and the rest before it waits
// again. The first query of another client overtakes what the flood has sent before, but for queries that have a turn.
func TestReaderTurns(t *testing.T) {
	const turns = 6
	flood, victim := netip.MustParseAddr("127.4.0.1"), netip.MustParseAddr("127.4.0.2")
	upstream, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check.NoError(t, err)
	defer upstream.Close()
	s := New(slog.New(slog.DiscardHandler), Limits{Readers: 1})
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Forward: patientPool(t, upstream.LocalAddr().(*net.UDPAddr).AddrPort())}
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	rt.Clients = clients.New(clients.Options{})
	socket := &scriptedSocket{t: t, upstream: upstream}
	n := 0
	add := func(victims int) {
		var batch []sentPacket
		for range udp.BatchSize - victims {
			batch = append(batch, sentPacket{flood, fmt.Sprintf("f%02d.test.", n)})
			n++
		}
		for i := range victims {
			batch = append(batch, sentPacket{victim, fmt.Sprintf("victim%d.test.", i)})
		}
		socket.batches = append(socket.batches, batch)
	}
	add(0)
	add(0)
	add(1)
	l := &listener{s: s, udp: []udp.Socket{socket}, progress: make([]progress, 1)}
	l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: rt}})
	s.turns.mu.Lock()
	s.turns.slots = share.NewSlots[*pendingQuery](turns)
	s.turns.sharedAt = clock.Now() // another client has just asked: the flood is not alone
	s.turns.mu.Unlock()
	newUDPReader(l, 0).run()

	var all []string
	for i, names := range socket.forwarded {
		if len(names) > sharedStarts {
			t.Errorf("after batch %d, %d queries are forwarded at once", i, len(names))
		}
		all = append(all, names...)
	}
	check.Equal(t, 3*udp.BatchSize, len(all), "the queries that are forwarded before the reader waits")
	// Those of two batches, what has a turn since, and one of the flood in the round that the victim joins.
	const latest = 2*sharedStarts + turns + 1
	for i, name := range all {
		if name == "victim0.test." && i > latest {
			t.Errorf("the victim's query is forwarded as number %d, later than %d, of %v", i, latest, all)
		}
	}
}
