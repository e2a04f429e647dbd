// These tests use the limits of HTTP/2 connections, which are not exported.

package server

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/grpcframe"
)

// Types and flags of HTTP/2 frames (RFC 9113, 6).
const (
	h2Data, h2Headers, h2Reset, h2Settings, h2Ping, h2Continuation = 0, 1, 3, 4, 6, 9

	h2EndStream, h2EndHeaders, h2Ack = 1, 4, 1
)

// h2Attacker writes HTTP/2 frames of its own.
type h2Attacker struct {
	net.Conn
	t   *testing.T
	a   *hostileTarget
	err error // of the first write that failed
}

// openH2 opens a connection with the client's settings, pairs of two and four bytes.
func (a *hostileTarget) openH2(t *testing.T, settings string) *h2Attacker {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := d.DialContext(t.Context(), "tcp", a.at.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	cfg := a.tls.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"h2"}, a.at.Addr().String()
	c := &h2Attacker{Conn: tls.Client(conn, cfg), t: t, a: a}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, c.err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.frame(h2Settings, 0, 0, settings)
	return c
}

func (c *h2Attacker) frame(kind, flags byte, stream uint32, payload string) {
	if c.err != nil {
		return
	}
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	_, c.err = c.Write(append(binary.BigEndian.AppendUint32(b, stream), payload...))
}

// field is a literal header field without indexing (RFC 7541, 6.2.2).
func field(name, value string) string {
	return "\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value
}

// header is the header of a request for the server's path.
func (c *h2Attacker) header() string {
	path, kind := dohPath, dnsMessageType
	if c.a.via == config.DNSOverGRPC {
		path, kind = grpcframe.Path, grpcframe.ContentType
	}
	return field(":method", "POST") + field(":scheme", "https") + field(":authority", "x") + field(":path", path) + field("content-type", kind)
}

// query is the body of a request for name's A records.
func (c *h2Attacker) query(name string) string {
	packet, err := question(name, dns.TypeA).Pack()
	if err != nil {
		c.t.Fatal(err)
	}
	if c.a.via == config.DNSOverGRPC {
		packet = grpcframe.Append(nil, packet)
	}
	return string(packet)
}

// await reads until the server has processed all frames so far; closed is set if it closes the connection before.
func (c *h2Attacker) await() (closed bool) {
	c.frame(h2Ping, 0, 0, "12345678")
	for c.err == nil {
		var head [9]byte
		if _, c.err = io.ReadFull(c, head[:]); c.err != nil {
			break
		}
		if head[3] == h2Ping && head[4]&h2Ack != 0 {
			return false
		}
		_, c.err = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
	}
	return true
}

// mustBeClosed fails the test unless the server closes the connection.
func (c *h2Attacker) mustBeClosed() []io.Closer {
	c.t.Helper()
	if c.err == nil {
		_, c.err = io.Copy(io.Discard, c)
	}
	var late net.Error
	if errors.As(c.err, &late) && late.Timeout() {
		c.t.Error("the connection stays open")
	}
	return []io.Closer{c}
}

// resetStreams opens requests that wait, and resets each at once (CVE-2023-44487).
func resetStreams(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for i := range uint32(20 * hostileStreams) {
		c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
		c.frame(h2Data, h2EndStream, 2*i+1, c.query("held.test."))
		c.frame(h2Reset, 0, 2*i+1, "\x00\x00\x00\x08")
	}
	c.await()
	return []io.Closer{c}
}

// endlessStreams opens more requests than a connection may have, and ends none.
func endlessStreams(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH2(t, "")
		for i := range uint32(2 * hostileStreams) {
			c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
			c.frame(h2Data, 0, 2*i+1, "\x00")
		}
		c.await()
		all = append(all, c)
	}
	return all
}

// closedWindow asks for replies that the client never allows the server to send (RFC 9113, 5.2), and for errors.
func closedWindow(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH2(t, "\x00\x04\x00\x00\x00\x00") // SETTINGS_INITIAL_WINDOW_SIZE
		for i := range uint32(hostileStreams) {
			query := c.query("many.test.")
			if i%2 == 0 {
				query = "no query"
			}
			c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
			c.frame(h2Data, h2EndStream, 2*i+1, query)
		}
		if c.await() {
			t.Errorf("the connection is closed: %v", c.err)
		}
		all = append(all, c)
	}
	return all
}

// hugeFrame announces a frame of 16 MiB.
func hugeFrame(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	_, c.err = io.WriteString(c, "\xff\xff\xff\x00\x00\x00\x00\x00\x01")
	return c.mustBeClosed()
}

// hugeMessage announces a message of 4 GiB, and sends as much as it may.
func hugeMessage(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for i := range uint32(2) {
		c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
		c.frame(h2Data, 0, 2*i+1, "\x00\xff\xff\xff\xff"+strings.Repeat("x", http2FrameSize-5))
		for range http2Window/2/http2FrameSize - 1 {
			c.frame(h2Data, 0, 2*i+1, strings.Repeat("x", http2FrameSize))
		}
	}
	c.await()
	return []io.Closer{c}
}

// endlessHeader sends CONTINUATION frames without an end (CVE-2023-45288).
func endlessHeader(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	c.frame(h2Headers, 0, 1, c.header())
	more := strings.Repeat(field("x", strings.Repeat("y", 120)), http2FrameSize/125)
	for range 1000 {
		c.frame(h2Continuation, 0, 1, more)
	}
	return c.mustBeClosed()
}

// unreadPings sends PING frames and doesn't read their acknowledgements, until it can't write any more. The server
// closes the connection. The client may not get to know: its kernel has no room for the end of the connection.
func unreadPings(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for c.err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		c.frame(h2Ping, 0, 0, "12345678")
	}
	eventually(t, "the server to close the connection", func() bool { return a.Usage().Conns.Used == 0 })
	return []io.Closer{c}
}
