package server

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// missPeer makes the process be what surrounds the agent in [BenchmarkMiss]: the upstream, the client, and the number of queries.
const missPeer = "NODENS_MISS_PEER"

// BenchmarkMiss is a query for a new name, one at a time, through the sockets of clients and upstreams. Client and upstream are a process
// of their own, so that test/cachelines sees the agent alone.
func BenchmarkMiss(b *testing.B) {
	if arguments := os.Getenv(missPeer); arguments != "" {
		askNewNames(b, arguments)
		return
	}
	upstream := netip.AddrPortFrom(loopback, peer.Ports(b, 1)[0])
	_, addr := start(b, Limits{}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(b, upstream)})
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c := exec.Command(program, "-test.run", "^$", "-test.bench", "^BenchmarkMiss$", "-test.benchtime", "1x")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%v %v %d", missPeer, upstream, addr, b.N))
	b.ResetTimer()
	if out, err := c.CombinedOutput(); err != nil {
		b.Fatalf("the client: %v\n%s", err, out)
	}
}

// askNewNames is the process beside the agent.
func askNewNames(b *testing.B, arguments string) {
	var upstream, addr string
	var n int
	if _, err := fmt.Sscan(arguments, &upstream, &addr, &n); err != nil {
		b.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", upstream)
	if err != nil {
		b.Fatal(err)
	}
	s := &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		w.WriteMsg(resolvertest.Address("192.0.2.1")(q))
	})}
	go s.ActivateAndServe()
	defer s.Shutdown()
	client := dns.Client{Timeout: time.Minute}
	conn, err := client.Dial(addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for i := range n {
		reply, _, err := client.ExchangeWithConn(question(fmt.Sprintf("n%d.new.test.", i), dns.TypeA), conn)
		if err != nil || len(reply.Answer) != 1 {
			b.Fatalf("query %d: %v, %v", i, reply, err)
		}
	}
}
