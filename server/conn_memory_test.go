package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
	"google.golang.org/grpc"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
	"github.com/nodens-dns/nodens/test/soak"
)

// Inside the package: it shares helpers with the tests of listeners.

// memoryTransports are the transports whose connections are measured.
var memoryTransports = map[string]config.Transport{
	"tls": config.DNSOverTLS, "https": config.DNSOverHTTPS, "grpc": config.DNSOverGRPC, "quic": config.DNSOverQUIC, "https3": config.DNSOverHTTP3,
}

// manifestMemory is the memory limit of daemonset/base/nodens.yaml in KiB.
const manifestMemory = 256 << 10

// connMemoryEnv names the transport in the environment of the process that is measured.
const connMemoryEnv = "NODENS_TEST_CONN_MEMORY"

// TestConnMemoryServer is the process that [BenchmarkConnMemory] measures. It serves until its input ends,
// and prints its resident memory in KiB for each line.
func TestConnMemoryServer(t *testing.T) {
	via, ok := memoryTransports[os.Getenv(connMemoryEnv)]
	if !ok {
		t.Skip("it is run by BenchmarkConnMemory")
	}
	s, addr, _ := startListener(t, patientLimits(), ListenerConfig{Transport: via}, byHand(t))
	fmt.Println(addr)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		debug.FreeOSMemory()
		u := s.Usage()
		fmt.Println(rss(t), u.Conns.Used)
	}
}

// rss returns the resident memory of this process in KiB.
func rss(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// BenchmarkConnMemory prints how much memory a connection takes that has had a query, with 1,024 of
// them from eight clients, or 16 in the short form:
//
//	NODENS_SOAK=1 go test ./server -run '^$' -bench ConnMemory -benchtime 1x
func BenchmarkConnMemory(b *testing.B) {
	for name, via := range memoryTransports {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				measureConns(b, name, via)
			}
		})
	}
}

// measureConns reports the memory of the connections over one transport.
func measureConns(b *testing.B, name string, via config.Transport) {
	const clients = 8
	conns := soak.Choose(16, 1024)
	server := exec.Command(os.Args[0], "-test.run", "^TestConnMemoryServer$")
	server.Env = append(os.Environ(), connMemoryEnv+"="+name)
	in, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = server.Wait()
	}()
	lines := bufio.NewScanner(out)
	read := func() string {
		if !lines.Scan() {
			b.Fatal("the server has ended")
		}
		return lines.Text()
	}
	addr := netip.MustParseAddrPort(read())
	used := func() (kib, open int) {
		fmt.Fprintln(in)
		if _, err := fmt.Sscan(read(), &kib, &open); err != nil {
			b.Fatal(err)
		}
		return kib, open
	}
	cfg := &tls.Config{InsecureSkipVerify: true} // a certificate of another process
	hold := func(i int) {
		from := netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i%clients)})
		if err := holdConn(b, via, addr, cfg, from); err != nil {
			b.Fatalf("connection %d: %v", i, err)
		}
	}
	hold(0)
	before, _ := used()
	for i := range conns - 1 {
		hold(i + 1)
	}
	after, open := used()
	if open != conns {
		b.Errorf("%d connections are open, want %d", open, conns)
	}
	if after > manifestMemory {
		b.Errorf("%d KiB are resident, the manifest allows %d", after, manifestMemory)
	}
	b.ReportMetric(float64(after-before)/float64(conns-1), "KiB/conn")
	b.ReportMetric(float64(after)/1024, "MiB-RSS")
}

// holdConn asks once over a connection that lasts as long as the benchmark.
func holdConn(b *testing.B, via config.Transport, addr netip.AddrPort, cfg *tls.Config, from netip.Addr) error {
	switch via {
	case config.DNSOverQUIC:
		_, err := openDoQ(b, addr, cfg, from).ask("by.hand.")
		return err
	case config.DNSOverHTTP3:
		c := newHTTP3(cfg)
		c.transport.Dial = func(ctx context.Context, _ string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
			if err != nil {
				return nil, err
			}
			return (&quic.Transport{Conn: socket}).Dial(ctx, net.UDPAddrFromAddrPort(addr), t, q)
		}
		b.Cleanup(c.close)
		_, _, err := c.ask(addr, question("by.hand.", dns.TypeA))
		return err
	}
	dialer := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	if via == config.DNSOverGRPC {
		c := grpcpeer.Dial(b, addr, cfg, grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", target)
		}))
		_, err := askGRPC(c, question("by.hand.", dns.TypeA))
		return err
	}
	if via == config.DNSOverHTTPS {
		c := openHTTPS(b, cfg, true)
		c.Transport.(*http.Transport).DialContext = dialer.DialContext
		_, _, err := c.ask(addr, question("by.hand.", dns.TypeA))
		return err
	}
	conn, err := tls.DialWithDialer(dialer, "tcp", addr.String(), cfg)
	if err != nil {
		return err
	}
	b.Cleanup(func() { _ = conn.Close() })
	return askOver(&dns.Conn{Conn: conn})
}
