// This test reads the counters of a Server's routes, which are not exported.

package server

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/server/clients"
)

// dialFrom connects a socket from the address.
func dialFrom(t *testing.T, from netip.Addr, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// floodSocket sends packet as fast as the kernel takes it until stop is set, and reads no replies.
func floodSocket(conn *net.UDPConn, packet []byte, stop *atomic.Bool) (sent uint64) {
	var messages [64]mmsg.Message
	vec := &unix.Iovec{Base: &packet[0]}
	vec.SetLen(len(packet))
	for i := range messages {
		messages[i].Iov = vec
		messages[i].SetIovlen(1)
	}
	_ = socket.WithFD(conn, func(fd int) error {
		for !stop.Load() {
			if n, errno := mmsg.Send(uintptr(fd), messages[:], 0); errno == 0 {
				sent += uint64(n)
			}
		}
		return nil
	})
	return sent
}

// droppedPackets returns the packets of the client at addr that the reader has dropped.
func droppedPackets(table *clients.Table, addr netip.Addr) uint64 {
	for _, c := range table.Report(clients.Pods, clients.Minute).Clients {
		if len(c.Addrs) == 1 && c.Addrs[0] == addr {
			return c.Total.Limited[clients.ReasonSocket]
		}
	}
	return 0
}

// TestSocketFlood: clients flood a reader beyond what it can answer. It drops packets of these clients only.
func TestSocketFlood(t *testing.T) {
	z := manyAddressesZone(t)
	s, addr := start(t, Limits{Readers: 1}, z)
	table := s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes.Clients
	queue, err := s.listeners[ListenAddr{AddrPort: addr}].udp[0].Duplicate()
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	if err := unix.SetsockoptInt(int(queue.Fd()), unix.SOL_SOCKET, unix.SO_RCVBUF, 256<<10); err != nil { // some 700 packets
		t.Fatal(err)
	}
	packet, err := question("many.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	flooder := netip.MustParseAddr("127.4.0.1")
	var stop atomic.Bool
	var sent atomic.Uint64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for range 2 {
		conn := dialFrom(t, flooder, addr)
		wg.Go(func() { sent.Add(floodSocket(conn, packet, &stop)) })
	}
	var victims []netip.Addr
	var asked, answered [20]int
	for i := range asked {
		victims = append(victims, netip.AddrFrom4([4]byte{127, 4, 1, byte(i)}))
		conn := dialFrom(t, victims[i], addr)
		wg.Go(func() {
			for buf := make([]byte, 4096); !stop.Load(); asked[i]++ {
				_, _ = conn.Write(packet)
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				if _, err := conn.Read(buf); err == nil {
					answered[i]++
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	eventually(t, "the reader to drop packets of the flood", func() bool { return droppedPackets(table, flooder) > 20_000 })
	stop.Store(true)
	wg.Wait()
	total := [2]int{}
	for i, v := range victims {
		if n := droppedPackets(table, v); n > 0 {
			t.Errorf("%d packets of %s are dropped, which asks at most 50 times a second", n, v)
		}
		total[0] += asked[i]
		total[1] += answered[i]
	}
	t.Logf("flood: %d sent, %d dropped by the reader; victims: %d asked, %d answered in time", sent.Load(), droppedPackets(table, flooder), total[0], total[1])
}
