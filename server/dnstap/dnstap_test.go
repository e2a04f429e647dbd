// Inside the package: the tests read protobuf field numbers, control frames and the buffer.

package dnstap

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// hangTimeout ends a test that would hang; no test measures it.
const hangTimeout = 30 * time.Second

// fields decodes a protobuf message: the values of each field number, in their order.
func fields(t *testing.T, b []byte) map[uint64][]any {
	t.Helper()
	out := make(map[uint64][]any)
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatalf("no key at % x", b)
		}
		b = b[n:]
		var v any
		switch key & 7 {
		case wireVarint:
			v, n = binary.Uvarint(b)
		case wireBytes:
			size, m := binary.Uvarint(b)
			v, n = slices.Clone(b[m:m+int(size)]), m+int(size)
		case wire32:
			v, n = uint64(binary.LittleEndian.Uint32(b)), 4
		default:
			t.Fatalf("wire type %d", key&7)
		}
		out[key>>3] = append(out[key>>3], v)
		b = b[n:]
	}
	return out
}

func text(f map[uint64][]any, n uint64) string {
	if len(f[n]) != 1 {
		return ""
	}
	return string(f[n][0].([]byte))
}

func number(f map[uint64][]any, n uint64) uint64 {
	if len(f[n]) != 1 {
		return 0
	}
	return f[n][0].(uint64)
}

// TestMessage: every field has its number and its value, in short and long messages.
func TestMessage(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_789)
	for _, size := range []int{0, 12, 60, 61, 127, 128, 300, 20_000, 65_535} {
		packet := bytes.Repeat([]byte{7}, size)
		for _, m := range []Message{
			{Type: ClientQuery, Protocol: UDP, Client: netip.MustParseAddrPort("192.0.2.7:4242"), Query: at, Packet: packet},
			{Type: ClientResponse, Protocol: TCP, Client: netip.MustParseAddrPort("[2001:db8::7]:65535"), Query: at, Response: at.Add(time.Second), Packet: packet, Extra: []byte("more")},
			{Type: ClientQuery, Protocol: UDP, Client: netip.MustParseAddrPort("[::ffff:192.0.2.7]:1"), Query: at},
			{Type: ForwarderQuery, Protocol: UDP, Client: netip.MustParseAddrPort("192.0.2.7:4242"), Server: netip.MustParseAddrPort("[::ffff:192.0.2.53]:53"), Query: at, Packet: packet},
			{Type: ForwarderResponse, Protocol: TCP, Client: netip.MustParseAddrPort("[2001:db8::7]:9"), Server: netip.MustParseAddrPort("[2001:db8::53]:65535"), Query: at, Response: at.Add(time.Second), Packet: packet},
		} {
			tap := New(config.Dnstap{Identity: "me", Version: "it", Queue: 1}, "", slog.New(slog.DiscardHandler))
			frame := m.appendFrame([]byte("before"), tap.commonFields)[6:]
			if n := binary.BigEndian.Uint32(frame); int(n) != len(frame)-4 {
				t.Fatalf("a frame of %d bytes says it has %d", len(frame)-4, n)
			}
			if len(frame) > m.maxLen(tap.commonFields) {
				t.Errorf("a frame takes %d bytes, and place for %d was looked for", len(frame), m.maxLen(tap.commonFields))
			}
			f := fields(t, frame[4:])
			if text(f, fieldIdentity) != "me" || text(f, fieldVersion) != "it" || text(f, fieldExtra) != string(m.Extra) || number(f, fieldKind) != 1 {
				t.Errorf("payload %v", f)
			}
			in := fields(t, f[fieldMessage][0].([]byte))
			ip := m.Client.Addr().Unmap()
			family := map[bool]uint64{true: 1, false: 2}[ip.Is4()]
			if number(in, fieldType) != uint64(m.Type) || number(in, fieldFamily) != family || number(in, fieldProtocol) != uint64(m.Protocol) ||
				text(in, fieldQueryAddress) != string(ip.AsSlice()) || number(in, fieldQueryPort) != uint64(m.Client.Port()) ||
				number(in, fieldQuerySec) != 1_700_000_000 || number(in, fieldQueryNsec) != 123_456_789 {
				t.Errorf("message %v of %+v", in, m)
			}
			if m.Server.IsValid() != (len(in[fieldReplyAddress]) == 1) || m.Server.IsValid() &&
				(text(in, fieldReplyAddress) != string(m.Server.Addr().Unmap().AsSlice()) || number(in, fieldReplyPort) != uint64(m.Server.Port())) {
				t.Errorf("message %v of %+v", in, m)
			}
			query, reply := text(in, fieldQueryPacket), text(in, fieldReplyPacket)
			if m.Type == ClientResponse || m.Type == ForwarderResponse {
				query, reply = reply, query
				if number(in, fieldReplySec) != 1_700_000_001 || number(in, fieldReplyNsec) != 123_456_789 {
					t.Errorf("message %v of %+v", in, m)
				}
			}
			if query != string(m.Packet) || reply != "" {
				t.Errorf("packets of %d and %d bytes, want %d", len(query), len(reply), size)
			}
		}
	}
}

// collector accepts connections on a unix socket.
type collector struct {
	t  *testing.T
	ln net.Listener
}

func collect(t *testing.T, path string) *collector {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return &collector{t, ln}
}

// accept accepts a connection and completes the handshake.
func (c *collector) accept() (net.Conn, *bufio.Reader) {
	c.t.Helper()
	conn, err := c.ln.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	return conn, c.handshake(conn)
}

// handshake completes the handshake on conn.
func (c *collector) handshake(conn net.Conn) *bufio.Reader {
	c.t.Helper()
	c.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(hangTimeout))
	r := bufio.NewReader(conn)
	kind, body, err := readControl(r)
	if err != nil || kind != controlReady || !acceptsContentType(body) {
		c.t.Fatalf("READY: %d % x %v", kind, body, err)
	}
	if _, err := conn.Write(controlFrame(controlAccept, contentType)); err != nil {
		c.t.Fatal(err)
	}
	if kind, body, err = readControl(r); err != nil || kind != controlStart || !acceptsContentType(body) {
		c.t.Fatalf("START: %d % x %v", kind, body, err)
	}
	return r
}

// frame reads a data frame and returns its client port, or -1 at the end of the stream.
func (c *collector) frame(r *bufio.Reader) int {
	c.t.Helper()
	head, err := r.Peek(4)
	if err != nil {
		c.t.Fatal(err)
	}
	n := binary.BigEndian.Uint32(head)
	if n == 0 {
		if kind, _, err := readControl(r); err != nil || kind != controlStop {
			c.t.Fatalf("STOP: %d %v", kind, err)
		}
		return -1
	}
	frame := make([]byte, 4+n)
	if _, err := io.ReadFull(r, frame); err != nil {
		c.t.Fatal(err)
	}
	return int(number(fields(c.t, fields(c.t, frame[4:])[fieldMessage][0].([]byte)), fieldQueryPort))
}

func clientQuery(port uint16) *Message {
	return &Message{Type: ClientQuery, Protocol: UDP, Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), port), Query: time.Unix(1, 0)}
}

// runTap runs tap until the test ends or stop is called.
func runTap(t *testing.T, tap *Tap) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		tap.Run(ctx)
		close(done)
	}()
	stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(hangTimeout):
			t.Error("Run does not return")
		}
	}
	t.Cleanup(stop)
	return stop
}

// TestTap: messages arrive in their order, also those sent before the collector started. A
// new connection continues after a broken one. The remaining messages are written at the end.
func TestTap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	tap := New(config.Dnstap{Network: "unix", Address: path, Queue: 10}, "v", slog.New(slog.DiscardHandler))
	tap.Send(clientQuery(1))
	tap.Send(clientQuery(2))
	c := collect(t, path)
	stop := runTap(t, tap)
	conn, r := c.accept()
	tap.Send(clientQuery(3))
	for want := 1; want <= 3; want++ {
		if got := c.frame(r); got != want {
			t.Fatalf("message %d, want %d", got, want)
		}
	}
	_ = conn.Close()
	conn, r = c.accept()
	for i := range 5 {
		tap.Send(clientQuery(uint16(4 + i)))
	}
	if got := c.frame(r); got != 4 {
		t.Fatalf("after the break message %d, want 4", got)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for want := 5; want <= 8; want++ {
			if got := c.frame(r); got != want {
				t.Errorf("message %d, want %d", got, want)
			}
		}
		if c.frame(r) == -1 {
			_, _ = conn.Write(controlFrame(controlFinish, ""))
		}
	}()
	stop()
	<-read
	if n := tap.Dropped(); n != 0 {
		t.Errorf("%d messages were dropped", n)
	}
}

// TestTapFull: without a collector, messages beyond the limits of number and of bytes are
// dropped and counted. Send does not block.
func TestTapFull(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tap := New(config.Dnstap{Network: "unix", Address: filepath.Join(t.TempDir(), "s"), Queue: 10}, "v", log)
	for range 25 {
		tap.Send(clientQuery(1))
	}
	if tap.queued != 10 || tap.Dropped() != 15 {
		t.Errorf("%d messages wait and %d were dropped, want 10 and 15", tap.queued, tap.Dropped())
	}
	large := New(config.Dnstap{Network: "unix", Address: "none", Queue: config.DnstapQueue}, "v", log)
	m := clientQuery(1)
	m.Packet = make([]byte, 65535)
	for range 2 * bufferSize / 65535 {
		large.Send(m)
	}
	if len(large.pending) > bufferSize || large.Dropped() == 0 || large.queued >= config.DnstapQueue {
		t.Errorf("%d messages of %d bytes wait, %d were dropped", large.queued, len(large.pending), large.Dropped())
	}
	runTap(t, tap)()
	if tap.Dropped() != 25 {
		t.Errorf("%d messages were lost, want all of 25", tap.Dropped())
	}
}

// TestSendAllocs: a message that fits into the buffer allocates nothing.
func TestSendAllocs(t *testing.T) {
	tap := New(config.Dnstap{Network: "unix", Address: "none", Queue: 1 << 20}, "v", slog.New(slog.DiscardHandler))
	tap.pending = make([]byte, 0, bufferSize)
	m := clientQuery(1)
	m.Packet = make([]byte, 100)
	if n := testing.AllocsPerRun(1000, func() { tap.Send(m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHandshake: peers that are no collectors, or want another content type, are rejected.
func TestHandshake(t *testing.T) {
	for name, c := range map[string]struct {
		reply []byte
		ok    bool
	}{
		"accept":          {controlFrame(controlAccept, contentType), true},
		"accept of any":   {controlFrame(controlAccept, ""), true},
		"another content": {controlFrame(controlAccept, "protobuf:other"), false},
		"another frame":   {controlFrame(controlStart, contentType), false},
		"a data frame":    {[]byte{0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1}, false},
		"a long frame":    {[]byte{0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 1}, false},
		"a short frame":   {[]byte{0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1}, false},
		"a broken field":  {[]byte{0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9}, false},
		"half a field":    {[]byte{0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1}, false},
		"the end":         {nil, false},
		"half a frame":    {controlFrame(controlAccept, contentType)[:20], false},
		"HTTP":            {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false},
		"another, then ours": {func() []byte {
			b := controlFrame(controlAccept, "x")
			b = append(b, controlFrame(controlAccept, contentType)[12:]...)
			binary.BigEndian.PutUint32(b[4:], uint32(len(b)-8))
			return b
		}(), true},
	} {
		err := startStream(io.Discard, bufio.NewReader(bytes.NewReader(c.reply)))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.reply == nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzControl: no input from a collector causes a panic.
func FuzzControl(f *testing.F) {
	f.Add(controlFrame(controlAccept, contentType))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = startStream(io.Discard, bufio.NewReader(bytes.NewReader(b)))
		_ = awaitFinish(bufio.NewReader(bytes.NewReader(b)))
	})
}
