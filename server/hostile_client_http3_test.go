// These tests use the limits of QUIC connections, which are not exported.

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
)

// Types of HTTP/3 frames and streams (RFC 9114, 7.2 and 6.2). The reserved type is to be ignored.
const (
	h3Data, h3Headers, h3Settings, h3Reserved = 0, 1, 4, 0x21

	h3Control = 0
)

// h3Endless is the announced length of a frame that doesn't end: 1 TiB.
const h3Endless = 1 << 40

// h3Attacker writes HTTP/3 frames of its own.
type h3Attacker struct {
	*doqClient
	t       *testing.T
	control *quic.SendStream
}

// openH3 opens a connection with the client's control stream. window, if it is not zero, is how many bytes of a response
// the server may send before the client has read some.
func (a *hostileTarget) openH3(t *testing.T, window uint64) *h3Attacker {
	t.Helper()
	cfg := withALPN(a.tls, a.at.AddrPort, "h3")
	settings := &quic.Config{KeepAlivePeriod: 20 * time.Millisecond, InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window, MaxIncomingUniStreams: 3}
	conn, err := dialOverQUIC(a.at.AddrPort, cfg, netip.MustParseAddr("127.0.0.2"), settings)
	if err != nil {
		t.Fatal(err)
	}
	c := &h3Attacker{doqClient: conn, t: t}
	c.control = c.openUni(h3Control)
	return c
}

// Close implements io.Closer.
func (c *h3Attacker) Close() error {
	c.close()
	return nil
}

// openUni opens a unidirectional stream of a type below 64.
func (c *h3Attacker) openUni(kind byte) *quic.SendStream {
	c.t.Helper()
	str, err := c.OpenUniStream()
	if err != nil {
		c.t.Fatal(err)
	}
	_, _ = str.Write([]byte{kind}) // fails once the connection is closed
	return str
}

// openRequest opens a stream and writes text to it.
func (c *h3Attacker) openRequest(text string) *quic.Stream {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	str, err := c.OpenStreamSync(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	_, _ = io.WriteString(str, text) // fails once the connection is closed
	return str
}

// sendStream is the sending side of a stream.
type sendStream interface {
	io.Writer
	SetWriteDeadline(t time.Time) error
}

// writeUntilCut writes text once a millisecond, and fails the test unless the server ends that.
func (c *h3Attacker) writeUntilCut(str sendStream, text string) {
	c.t.Helper()
	_ = str.SetWriteDeadline(time.Now().Add(patience))
	var err error
	for err == nil {
		_, err = io.WriteString(str, text)
		time.Sleep(time.Millisecond) // more would take the processor from the other cases
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() && c.Context().Err() == nil {
		c.t.Error("the stream stays open")
	}
}

// h3Head is what precedes the payload of a frame.
func h3Head(kind, length uint64) string {
	return string(quicvarint.Append(quicvarint.Append(nil, kind), length))
}

func h3Frame(kind uint64, payload string) string {
	return h3Head(kind, uint64(len(payload))) + payload
}

// h3Header is a HEADERS frame with a request for the server's path, followed by the encoded field lines more.
func h3Header(more string) string {
	var b strings.Builder
	b.WriteString("\x00\x00") // no dynamic table
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "x"}, {":path", dohPath}, {"content-type", dnsMessageType}} {
		b.WriteString(h3FieldName(f[0]) + string(rune(len(f[1]))) + f[1])
	}
	return h3Frame(h3Headers, b.String()+more)
}

// h3FieldName is the beginning of a literal field line with a literal name (RFC 9204, 4.5.6). The first byte has three bits
// for the name's length.
func h3FieldName(name string) string {
	if len(name) < 7 {
		return string(rune(0x20|len(name))) + name
	}
	return "\x27" + string(rune(len(name)-7)) + name
}

// h3Request is a whole request for name's A records.
func h3Request(t *testing.T, name string) string {
	t.Helper()
	packet, err := question(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return h3Header("") + h3Frame(h3Data, string(packet))
}

// unfinishedRequests opens all streams of its connections, and sends requests without their end.
func unfinishedRequests(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH3(t, 0)
		for range maxQUICStreams {
			c.openRequest(h3Header("") + h3Head(h3Data, 100) + "\x00")
		}
		all = append(all, c)
	}
	eventually(t, "the places to be taken", func() bool { return a.Usage().Requests.Used == hostilePlaces })
	return all
}

// resetRequests opens requests that wait, and resets each at once in both directions (CVE-2023-44487).
func resetRequests(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	for range 20 * maxQUICStreams {
		str := c.openRequest(h3Request(t, "held.test."))
		str.CancelWrite(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
		str.CancelRead(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
	}
	return []io.Closer{c}
}

// unreadResponses asks on all streams of its connections for replies of which the server may send only the beginning.
func unreadResponses(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH3(t, 256)
		for range maxQUICStreams {
			_ = c.openRequest(h3Request(t, "many.test.")).Close()
		}
		all = append(all, c)
	}
	eventually(t, "the places to be taken", func() bool { return a.Usage().Requests.Used == hostilePlaces })
	return all
}

// endlessH3Header sends a HEADERS frame that doesn't end.
func endlessH3Header(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	str := c.openRequest(h3Head(h3Headers, h3Endless))
	c.writeUntilCut(str, strings.Repeat("\x00", 1<<10))
	return []io.Closer{c}
}

// referencingHeaders sends field sections whose lines refer to the longest one of the static table (RFC 9204, appendix
// A): decoded they are 50 times as long.
func referencingHeaders(t *testing.T, a *hostileTarget) (all []io.Closer) {
	const policy = "\xff\x16" // content-security-policy: script-src 'none'; object-src 'none'; base-uri 'none'
	header := h3Header(strings.Repeat(policy, maxHTTPHeader/len(policy)-100))
	for range hostileConns {
		c := a.openH3(t, 0)
		for range maxQUICStreams / 4 {
			str := c.openRequest(header)
			_ = str.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, str); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the stream stays open")
			}
		}
		all = append(all, c)
	}
	a.EachHTTPStatus(a.at, func(status int, n uint64) {
		if status != http.StatusOK { // another client's
			t.Errorf("%d of the headers were accepted, and got status %d", n, status)
		}
	})
	return all
}

// endlessBody sends a body that doesn't end.
func endlessBody(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	str := c.openRequest(h3Header("") + h3Head(h3Data, h3Endless))
	c.writeUntilCut(str, strings.Repeat("\x00", 1<<10))
	return []io.Closer{c}
}

// unknownFrames sends frames that are to be ignored, and never a request.
func unknownFrames(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	c.writeUntilCut(c.openRequest(""), h3Frame(h3Reserved, strings.Repeat("x", 1<<10)))
	return []io.Closer{c}
}

// unknownControlFrames sends frames that are to be ignored on the control stream, which may stay open forever. That keeps
// no connection without queries open.
func unknownControlFrames(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	_, _ = io.WriteString(c.control, h3Frame(h3Settings, ""))
	c.writeUntilCut(c.control, h3Frame(h3Reserved, strings.Repeat("x", 1<<10)))
	c.code(t)
	return []io.Closer{c}
}

// closedControlStream closes a stream that has to stay open (RFC 9114, 6.2.1).
func closedControlStream(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	_, _ = io.WriteString(c.control, h3Frame(h3Settings, ""))
	_ = c.control.Close()
	c.code(t)
	return []io.Closer{c}
}

// oversizeSettings sends settings that don't end.
func oversizeSettings(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	_, _ = io.WriteString(c.control, h3Head(h3Settings, h3Endless))
	c.writeUntilCut(c.control, strings.Repeat("\x21\x00", 1<<9))
	c.code(t)
	return []io.Closer{c}
}

// untypedStreams opens all unidirectional streams, and never says what they are for. They begin with the first byte of a
// type that has two.
func untypedStreams(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH3(t, 0)
		for range maxHTTP3UniStreams - 1 { // one is the control stream
			c.openUni(0x40)
		}
		var over *quic.StreamLimitReachedError
		if _, err := c.OpenUniStream(); !errors.As(err, &over) {
			t.Errorf("one stream more: %v", err)
		}
		all = append(all, c)
	}
	return all
}

// endlessUniStreams opens unidirectional streams of a type that is to be ignored, one after the other. That keeps no
// connection without queries open.
func endlessUniStreams(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH3(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		str, err := c.OpenUniStreamSync(ctx)
		if err != nil {
			break
		}
		_, _ = str.Write([]byte{h3Reserved})
		_ = str.Close()
	}
	c.code(t)
	return []io.Closer{c}
}
