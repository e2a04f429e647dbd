// Inside the package: the benchmarks use transports without a Pool.

package upstream

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// BenchmarkExchange measures one exchange over loopback. The server runs in this process
// and costs about as much as the Pool: the time covers both, the allocations are the
// Pool's.
func BenchmarkExchange(b *testing.B) {
	for _, over := range []string{"udp", "tcp"} {
		b.Run(over, func(b *testing.B) {
			cfg := forwardTo()
			cfg.To = []config.Target{{Addr: echoServer(b)}}
			p := newPool(b, cfg)
			q := question(b, "www.example.org.")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Exchange(b.Context(), q, over == "tcp"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkExchangeParallel(b *testing.B) {
	cfg := forwardTo()
	cfg.To = []config.Target{{Addr: echoServer(b)}}
	p := newPool(b, cfg)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		q := question(b, "www.example.org.")
		for pb.Next() {
			if _, err := p.Exchange(b.Context(), q, false); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// TestOwnAllocations: an exchange allocates only the packed answer, in package wire, and
// occasionally a socket.
func TestOwnAllocations(t *testing.T) {
	cfg := forwardTo()
	cfg.To = []config.Target{{Addr: echoServer(t)}}
	p := newPool(t, cfg)
	q := fixedQuery(t)
	reply := answerA(append([]byte(nil), q.message()...))
	packed := testing.AllocsPerRun(100, func() {
		if _, err := wire.ParseResponse(reply, q.request); err != nil {
			t.Fatal(err)
		}
	})
	x := newExchange(p) // one for all: the race detector makes sync.Pool drop items
	for _, overTCP := range []bool{false, true} {
		all := testing.AllocsPerRun(200, func() {
			x.request, x.servers, x.tcp, x.deadline = q.request, p.servers(), overTCP, time.Now().Add(time.Hour)
			if _, err := x.run(context.Background()); err != nil {
				t.Fatal(err)
			}
			x.reset()
		})
		if all > packed {
			t.Errorf("an exchange (TCP %t) allocates %v times, the answer alone %v", overTCP, all, packed)
		}
	}
}

// listen returns sockets on a loopback port that is free for both protocols.
func listen(t testing.TB) (*net.UDPConn, *net.TCPListener) {
	t.Helper()
	loopback := net.IPv4(127, 0, 0, 1)
	var last error
	for range 50 {
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: loopback})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: loopback, Port: u.LocalAddr().(*net.UDPAddr).Port})
		if err == nil {
			return u, l
		}
		u.Close()
		last = err
	}
	t.Fatalf("no port for a server: %v", last)
	return nil, nil
}

// echoServer returns every query with an address in place of its OPT record. It allocates
// nothing per query.
func echoServer(b testing.TB) netip.AddrPort {
	b.Helper()
	u, t := listen(b)
	b.Cleanup(func() {
		u.Close()
		t.Close()
	})
	go func() {
		buf := make([]byte, wire.MaxMessage)
		for {
			n, from, err := u.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			u.WriteToUDPAddrPort(answerA(buf[:n]), from)
		}
	}()
	go func() {
		for {
			c, err := t.Accept()
			if err != nil {
				return
			}
			go echoConn(c)
		}
	}()
	return u.LocalAddr().(*net.UDPAddr).AddrPort()
}

func echoConn(c net.Conn) {
	defer c.Close()
	buf := make([]byte, wire.MaxMessage)
	for {
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
		n := 2 + int(buf[0])<<8 + int(buf[1])
		if _, err := io.ReadFull(c, buf[2:n]); err != nil {
			return
		}
		out := answerA(buf[2:n])
		buf[0], buf[1] = byte(len(out)>>8), byte(len(out))
		c.Write(buf[:2+len(out)])
	}
}

// answerA turns query, which has an OPT record after the question, into its reply in place. A probe has
// no OPT record and is returned unchanged.
func answerA(query []byte) []byte {
	if query[11] == 0 {
		query[2] |= qrBit
		return query
	}
	end := headerLen
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	out := query[:end+5]
	out[2] |= qrBit
	out[7], out[11] = 1, 0 // ANCOUNT, ARCOUNT
	return append(out, 0xC0, headerLen, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1)
}
