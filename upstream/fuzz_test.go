package upstream

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// bytesConn is a connection whose other end has sent all it will ever send. It
// hands it out in pieces of at most piece bytes; datagrams keeps them apart.
type bytesConn struct {
	net.Conn
	left  []byte
	piece int
}

func (b *bytesConn) Write(p []byte) (int, error) { return len(p), nil }

func (b *bytesConn) Read(p []byte) (int, error) {
	if len(b.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.left[:min(b.piece, len(b.left))])
	b.left = b.left[n:]
	return n, nil
}

// fixedCall is a call whose query has ID 0x0102.
func fixedCall(t testing.TB) *call {
	c := newCall()
	c.query, c.payload = question(t, "www.example.org."), DefaultPayload
	c.build(true)
	binary.BigEndian.PutUint16(c.frame[2:], 0x0102)
	return c
}

// seeds are replies to fixedCall's query, and what is nearly one.
func seeds(t testing.TB) [][]byte {
	var m dns.Msg
	if err := m.Unpack(fixedCall(t).message()); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	add := func(r *dns.Msg) {
		b, err := r.Pack()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b, b[:len(b)-1])
	}
	add(request{Msg: &m}.answer(3))
	add(request{Msg: &m}.rcode(dns.RcodeFormatError))
	add(request{Msg: &m}.rcode(dns.RcodeNameError).SetEdns0(1232, true))
	other := request{Msg: &m}.answer(1)
	other.Id++
	add(other)
	return out
}

// FuzzStream: whatever a TCP server sends, in whatever pieces, what comes out is
// one whole frame of it that answers the query, or an error.
func FuzzStream(f *testing.F) {
	for _, s := range seeds(f) {
		framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
		f.Add(framed, uint8(1))
		f.Add(slices.Concat([]byte{0, 0, 0, 2, 7, 7}, framed, framed), uint8(200))
	}
	f.Fuzz(func(t *testing.T, sent []byte, piece uint8) {
		c := fixedCall(t)
		conn := &bytesConn{left: sent, piece: 1 + int(piece)}
		msg, keep, err := tcp{}.talk(conn, c)
		if err != nil {
			return
		}
		if !wire.Matches(msg, c.message()) {
			t.Fatalf("%x does not answer the query", msg)
		}
		frames, rest := sent, []byte(nil)
		for found := false; !found; {
			if len(frames) < 2 {
				t.Fatalf("%x is no frame of %x", msg, sent)
			}
			end := 2 + int(binary.BigEndian.Uint16(frames))
			found = bytes.Equal(frames[2:min(end, len(frames))], msg)
			frames = frames[min(end, len(frames)):]
			rest = frames
		}
		if keep && len(conn.left) < len(rest) {
			t.Fatal("a connection with bytes read beyond the reply is kept")
		}
		parse(msg, c)
	})
}

// FuzzDatagram: whatever comes over UDP, it is dropped, or it answers the query
// and is read as a response or refused.
func FuzzDatagram(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add(make([]byte, datagramRoom+1))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		c := fixedCall(t)
		p := port{all: new(int)}
		p.put(c)
		if !p.deliver(datagram[:min(len(datagram), datagramRoom+1)]) {
			return
		}
		<-c.landed
		msg := c.reply[:c.got]
		if !wire.Matches(msg, c.message()) {
			t.Fatalf("%x does not answer the query", msg)
		}
		if len(msg) > datagramRoom && !cut(msg) {
			t.Fatal("a datagram that was cut is not marked")
		}
		lacksEDNS(msg)
		if r, err := parse(msg, c); err == nil && r.Packed.IsZero() {
			t.Fatal("a response without an answer to send")
		}
	})
}
