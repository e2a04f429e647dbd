// These tests use readBatch, udpSocket and batchSize, which are not exported.

package server

// Inside the package: sockets are not exported.

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/race"
)

// burstSize is how many packets come while late replies are sent: with a socket that joined
// the others in front every two hundredth of those that come while one is closed would be
// lost. A tenth of it might not meet with one, ten times as many would take seconds.
const burstSize = 5000

// TestSendAfterClose: a port that is shut sends a reply from its address, and whoever reads
// there by then loses nothing by it.
func TestSendAfterClose(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		for _, w := range readerKinds {
			t.Run(host+", "+w.name, func(t *testing.T) {
				addr := netip.AddrPortFrom(netip.MustParseAddr(host), peer.Ports(t, 1)[0])
				limits := w.limits
				limits.noMmsg = w.plain
				p := openAt(t, addr, limits)
				client := dialUDP(t, addr)
				if _, err := client.Write([]byte("?")); err != nil {
					t.Fatal(err)
				}
				b := newBatch()
				if !p.readBatch(b) {
					t.Fatal("the port gives no packet")
				}
				from := b.packets[0].from
				others := []udpSocket{openAt(t, addr, limits), openAt(t, addr, limits)}
				p.close()
				if p.readBatch(b) {
					t.Fatal("the port is shut and gives a packet")
				}
				p.send(&from, []byte("!"))
				if n, err := client.Read(make([]byte, 2)); n != 1 || err != nil {
					t.Fatalf("%d bytes came back, %v", n, err)
				}
				balance(others)
				checkNoLoss(t, addr, others, func() { p.send(&from, []byte("!")) })
			})
		}
	}
}

func openAt(t *testing.T, addr netip.AddrPort, limits Limits) udpSocket {
	t.Helper()
	p, err := openUDPSocket(addr, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// dialUDP is a client of addr, which hears nothing but what comes from there.
func dialUDP(t *testing.T, addr netip.AddrPort) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// checkNoLoss checks that ports, which are those of addr, get each packet of a burst while
// disturb is called again and again.
func checkNoLoss(t *testing.T, addr netip.AddrPort, ports []udpSocket, disturb func()) {
	t.Helper()
	var all sync.WaitGroup
	var got atomic.Uint64
	for _, p := range ports {
		all.Go(func() {
			for b := newBatch(); p.readBatch(b); {
				got.Add(uint64(b.n))
			}
		})
	}
	var over atomic.Bool
	all.Go(func() {
		for !over.Load() {
			disturb()
		}
	})
	defer all.Wait()
	defer closeAll(ports)
	defer over.Store(true)
	client := dialUDP(t, addr)
	for sent := range uint64(burstSize) {
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if sent%batchSize == 0 { // no more than their queues hold
			eventually(t, "the packets to be read", func() bool { return got.Load()+64*batchSize > sent })
		}
	}
	eventually(t, "each packet to be read", func() bool { return got.Load() == burstSize })
}

// TestUDPAllocPin: a hit over UDP allocates nothing, counted for its client.
func TestUDPAllocPin(t *testing.T) {
	race.SkipSequential(t)
	_, addr := start(t, Limits{}, byHand(t))
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, replyBuffer)
	// What happens once, to the pools and to the deadline, is far below one in a run.
	if n := testing.AllocsPerRun(200, func() {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(query); err != nil {
			t.Error(err)
		}
		if _, err := conn.Read(reply); err != nil {
			t.Error(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
