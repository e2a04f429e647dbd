// These tests use reuseportBalancer, which is not exported.

package udp

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/test/peer"
)

const (
	// spreadSockets is the number of sockets of one address, as on a node with 16 processors, and spreadClients that of
	// the clients. The client number i sends a share of the packets that is proportional to 1/i (Zipf).
	spreadSockets, spreadClients = 16, 64
	// spreadPackets is the number of packets in a burst that no queue of the sockets is too short for, and spreadBursts
	// the number of bursts.
	spreadPackets, spreadBursts = 128, 128
)

// busiestShare sends bursts of packets to the sockets of one address, and returns how many of them the busiest one gets,
// in units of the mean. With random set, packets are spread as under load; else the kernel chooses by a hash.
func busiestShare(tb testing.TB, random bool) float64 {
	tb.Helper()
	addr := netip.AddrPortFrom(loopback, peer.Ports(tb, 1)[0])
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for range spreadSockets {
		fd, err := socket.OpenUDP(addr)
		if err != nil {
			tb.Fatal(err)
		}
		fds = append(fds, fd)
	}
	if random {
		if err := (&reuseportBalancer{fd: fds[0], n: spreadSockets}).attach(spreadSockets); err != nil {
			tb.Fatal(err)
		}
	}
	var clients []net.Conn
	for range spreadClients {
		conn, err := net.Dial("udp", addr.String())
		if err != nil {
			tb.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, conn)
	}
	var harmonic float64
	for i := range clients {
		harmonic += 1 / float64(i+1)
	}
	counts, received := make([]int, spreadSockets), 0
	for range spreadBursts {
		sent := 0
		for i, conn := range clients {
			for range max(1, int(spreadPackets/harmonic/float64(i+1))) {
				if _, err := conn.Write([]byte{1}); err != nil {
					tb.Fatal(err)
				}
				sent++
			}
		}
		for s, fd := range fds {
			for {
				if _, _, err := unix.Recvfrom(fd, make([]byte, 16), unix.MSG_DONTWAIT); err != nil {
					break
				}
				counts[s]++
				sent--
				received++
			}
		}
		if sent != 0 {
			tb.Fatalf("%d packets were lost", sent)
		}
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	return float64(most) * spreadSockets / float64(received)
}

// TestSpread: while packets are spread, a few busy clients load all readers alike. 1.2 is six standard deviations.
func TestSpread(t *testing.T) {
	if busiest := busiestShare(t, true); busiest > 1.2 {
		t.Errorf("the busiest of %d sockets gets %.2f times the mean", spreadSockets, busiest)
	}
}

// BenchmarkSpread is how unevenly a few busy clients load the readers: busiest/mean is the share of the busiest socket.
func BenchmarkSpread(b *testing.B) {
	for name, random := range map[string]bool{"random": true, "hash": false} {
		b.Run(name, func(b *testing.B) {
			var sum float64
			for b.Loop() {
				sum += busiestShare(b, random)
			}
			b.ReportMetric(sum/float64(b.N), "busiest/mean")
		})
	}
}
