// These tests use the limits of QUIC connections, which are not exported.

package server

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
)

// dialQUIC opens a connection. Unlike [openDoQ] it keeps no reference to it.
// window, if it is not zero, is how many bytes of a reply the server may send before the client has read some.
func (a *hostileTarget) dialQUIC(t *testing.T, window uint64) *doqClient {
	t.Helper()
	settings := &quic.Config{KeepAlivePeriod: 20 * time.Millisecond, InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window}
	c, err := dialOverQUIC(a.at.AddrPort, withALPN(a.tls, a.at.AddrPort, "doq"), netip.MustParseAddr("127.0.0.2"), settings)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unfinishedStreams opens all streams of its connections, and sends nothing but their first byte (CVE-2025-47950).
func unfinishedStreams(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.dialQUIC(t, 0)
		for range maxQUICStreams {
			str, err := c.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = str.Write([]byte{0}) // fails once the connection is closed
		}
		all = append(all, closerFunc(c.close))
	}
	eventually(t, "the places to be taken", func() bool { return a.Usage().Requests.Used == hostilePlaces })
	return all
}

// unreadReplies asks on all streams of its connections for replies that it doesn't read.
func unreadReplies(t *testing.T, a *hostileTarget) (all []io.Closer) {
	query := packed(t, func(q *dns.Msg) { q.Question[0].Name = "many.test." })
	for range hostileConns {
		c := a.dialQUIC(t, 256)
		for range maxQUICStreams {
			str, err := c.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = str.Write(query)
			_ = str.Close()
		}
		all = append(all, closerFunc(c.close))
	}
	eventually(t, "the places to be taken", func() bool { return a.Usage().Requests.Used == hostilePlaces })
	return all
}

// unfinishedHandshakes begins handshakes from spoofed addresses: it never reads what the server sends.
func unfinishedHandshakes(t *testing.T, a *hostileTarget) (all []io.Closer) {
	proto := "doq"
	if a.via == config.DNSOverHTTP3 {
		proto = "h3"
	}
	cfg := withALPN(a.tls, a.at.AddrPort, proto)
	for i := range 2 * retryHandshakes {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 2, byte(i+1))})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		tr := &quic.Transport{Conn: struct{ net.PacketConn }{deafSocket{socket, closed}}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = tr.Dial(t.Context(), net.UDPAddrFromAddrPort(a.at.AddrPort), cfg, &quic.Config{HandshakeIdleTimeout: 100 * time.Millisecond})
		}()
		all = append(all, closerFunc(func() {
			<-ended
			close(closed)
			_ = tr.Close()
			_ = socket.Close()
		}))
	}
	if n := a.handshakes(); n > retryHandshakes {
		t.Errorf("%d handshakes are in flight, want at most %d", n, retryHandshakes)
	}
	return all
}
