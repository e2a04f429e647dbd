// Inside the package: the fuzzers call the readers of frames and replies.

package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// bytesConn is a connection whose peer has sent everything. Reads return at most piece
// bytes, or whole datagrams.
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

// fixedQuery returns a query with ID 0x0102.
func fixedQuery(t testing.TB) *query {
	q := newQuery()
	q.request, q.payload = question(t, "www.example.org."), DefaultPayload
	q.build(true, new(server))
	binary.BigEndian.PutUint16(q.frame[2:], 0x0102)
	return q
}

// seeds are replies to fixedQuery's query, and near misses.
func seeds(t testing.TB) [][]byte {
	var m dns.Msg
	noError(t, m.Unpack(fixedQuery(t).message()))
	var out [][]byte
	add := func(r *dns.Msg) {
		b, err := r.Pack()
		noError(t, err)
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

// FuzzStream: whatever a TCP server sends, in whatever pieces, a query either completes
// with a whole frame that matches it, or not at all.
func FuzzStream(f *testing.F) {
	for _, s := range seeds(f) {
		framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
		f.Add(framed, uint16(1))
		f.Add(slices.Concat([]byte{0, 0, 0, 2, 7, 7}, framed, framed), uint16(200))
		f.Add(slices.Concat([]byte{0xFF, 0xFF}, make([]byte, 0xFFFF), framed), uint16(5000))
	}
	f.Fuzz(func(t *testing.T, sent []byte, piece uint16) {
		var want [][]byte // the frames
		for rest := sent; len(rest) >= 2; {
			end := 2 + int(binary.BigEndian.Uint16(rest))
			if end > len(rest) {
				break
			}
			want, rest = append(want, rest[2:end]), rest[end:]
		}
		q := fixedQuery(t)
		c := &streamConn{queries: map[uint16]*query{q.sentID(): q}, connection: connection{inFlight: 1}, total: new(int)}
		*c.total = 1
		conn := &bytesConn{left: sent, piece: 1 + int(piece)}
		in := frameReader{buf: make([]byte, readBufSize)}
		answered, n := -1, 0
		for err := error(nil); err == nil; {
			err = in.fill(conn)
			for msg, ok := in.next(); ok; msg, ok = in.next() {
				if n == len(want) || !bytes.Equal(msg, want[n]) {
					t.Fatalf("frame %d is %x", n, msg)
				}
				if deliverAndComplete(c, msg, time.Now()) && answered < 0 {
					answered = n
				}
				n++
			}
		}
		if n != len(want) {
			t.Fatalf("%d frames were read, want %d", n, len(want))
		}
		if over, err := completed(q); over != (answered >= 0) || err != nil {
			t.Fatalf("the query has ended: %t, with %v; the frame for it is number %d", over, err, answered)
		}
		if answered < 0 {
			return
		}
		msg := q.reply[:q.replyLen]
		if !bytes.Equal(msg, want[answered]) || !wire.Matches(msg, q.message()) {
			t.Fatalf("%x does not answer the query", msg)
		}
		parseResponse(msg, q)
	})
}

// FuzzQUICStream reads any bytes as the reply on a stream of QUIC, in pieces: reading ends,
// with the reply as it was sent or an error, and keeps no more than was sent.
func FuzzQUICStream(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(prefixed(s), uint16(1))
		f.Add(prefixed(s), uint16(5000))
		f.Add(append(prefixed(s), prefixed(s)...), uint16(200))
	}
	f.Add(prefixed(make([]byte, 0xFFFF)), uint16(1200))
	f.Add([]byte{0, 0, 0}, uint16(2))
	f.Fuzz(func(t *testing.T, sent []byte, piece uint16) {
		r := &doqRequest{reply: make([]byte, doqReplySize)}
		n, _, err := readReply(r, &bytesConn{left: sent, piece: 1 + int(piece)})
		if len(r.reply) > max(doqReplySize, 2*len(sent)) {
			t.Fatalf("a buffer of %d bytes for %d", len(r.reply), len(sent))
		}
		complete := len(sent) > 2 && len(sent) >= 2+int(binary.BigEndian.Uint16(sent))
		switch {
		case err == nil && (!complete || n != int(binary.BigEndian.Uint16(sent)) || !bytes.Equal(r.reply[2:2+n], sent[2:2+n])):
			t.Fatalf("%x is not the reply in %x", r.reply[2:2+n], sent)
		case err != nil && !errors.Is(err, errDoQProtocol):
			t.Fatalf("%v; want a protocol error", err)
		case !complete && !errors.Is(err, errCutOff):
			t.Fatalf("%v; want that the stream ends within the reply", err)
		}
	})
}

// FuzzDatagram: a datagram is dropped, or it answers the query and is parsed or rejected.
func FuzzDatagram(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add(make([]byte, maxDatagram+1))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		q := fixedQuery(t)
		s := udpSocket{total: new(int)}
		s.add(q)
		if !s.deliver(datagram[:min(len(datagram), maxDatagram+1)]) {
			return
		}
		<-q.done
		msg := q.reply[:q.replyLen]
		if !wire.Matches(msg, q.message()) {
			t.Fatalf("%x does not answer the query", msg)
		}
		if len(msg) > maxDatagram && !isTruncated(msg) {
			t.Fatal("a datagram that was cut is not marked")
		}
		lacksEDNS(msg)
		if r, err := parseResponse(msg, q); err == nil && r.Packed.IsZero() {
			t.Fatal("a response without an answer to send")
		}
	})
}
