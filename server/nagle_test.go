// Inside the package: it looks at the sockets of connections.

package server

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
)

// pureAcks returns how many segments without data the kernel has sent on the server's connection (tcpi_segs_out and
// tcpi_data_segs_out, RFC 4898), and whether all that has arrived is read.
func pureAcks(t *testing.T, s *Server) (n int, read bool) {
	t.Helper()
	for _, l := range s.listeners {
		l.tcp.mu.Lock()
		defer l.tcp.mu.Unlock()
		for c := range l.tcp.conns.All() {
			err := socket.WithFD(c.conn, func(fd int) error {
				info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
				if err != nil {
					return err
				}
				n = int(info.Segs_out) - int(info.Data_segs_out)
				waiting, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
				read = waiting == 0
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	return n, read
}

// TestAcknowledgedAtOnce: what a client with Nagle's algorithm (RFC 896) waits for is acknowledged at once: the end of a
// TLS handshake, the start of a query, and a query that waits. Others are acknowledged by their replies. The client of
// the test has no such algorithm, so that what follows comes before a delayed acknowledgment would leave.
func TestAcknowledgedAtOnce(t *testing.T) {
	const times = 20
	b, asked, release := holdingBackend(t)
	defer close(release)
	zone := byHand(t, b.Addr())
	plain, addr := start(t, Limits{}, zone)
	secure, secureAddr, roots := startListener(t, Limits{}, dotConfig, zone)
	dialSecure := func() *dns.Conn {
		conn, err := dialTLS(secureAddr, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	await := func(s *Server) {
		eventually(t, "what has arrived is read", func() bool { _, read := pureAcks(t, s); return read })
	}
	ask := func(conn *dns.Conn) {
		t.Helper()
		if err := askOver(conn); err != nil {
			t.Fatal(err)
		}
	}

	sum := 0
	for range times {
		conn := dialSecure()
		await(secure)
		ask(conn)
		n, _ := pureAcks(t, secure)
		sum += n
		_ = conn.Close()
		eventually(t, "the connection is closed", func() bool { return openConns(secure) == 0 })
	}
	if least := 2*times + times/2; sum < least { // connecting takes one, and the client's first message another one
		t.Errorf("%d acknowledgments without a reply for %d handshakes, want %d or more", sum, times, least)
	}

	for _, c := range []struct {
		s    *Server
		conn *dns.Conn
	}{{plain, dial(t, loopback, addr)}, {secure, dialSecure()}} {
		defer c.conn.Close()
		for range times { // so that the kernel delays acknowledgments
			ask(c.conn)
		}
		packet := frame(t, question("by.hand.", dns.TypeA))
		for _, test := range []struct {
			name        string
			least, most int // one for each query that no reply acknowledges comes in any case
			do          func(i int)
		}{
			{"whole queries", 0, times / 2, func(int) { ask(c.conn) }},
			{"queries in two parts", times + times/2, 3 * times, func(int) {
				_, _ = c.conn.Conn.Write(packet[:lengthPrefix])
				await(c.s)
				_, _ = c.conn.Conn.Write(packet[lengthPrefix:])
				if _, err := c.conn.ReadMsg(); err != nil {
					t.Fatal(err)
				}
			}},
			{"queries that wait", times + times/2, 3 * times, func(i int) {
				_, _ = c.conn.Conn.Write(frame(t, question(fmt.Sprintf("slow-%d-%p.test.", i, c.s), dns.TypeA)))
				<-asked
				ask(c.conn)
			}},
		} {
			before, _ := pureAcks(t, c.s)
			for i := range times {
				test.do(i)
			}
			after, _ := pureAcks(t, c.s)
			if n := after - before; n < test.least || n > test.most {
				t.Errorf("TLS %t, %d %s: %d acknowledgments without a reply, want %d to %d", c.s == secure, times, test.name, n, test.least, test.most)
			}
		}
	}
}
