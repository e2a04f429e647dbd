// These tests share the target of the other hostile clients, which counts what is not exported.

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/grpcframe"
)

// grpcAttacker makes calls with messages of its own, over one connection.
type grpcAttacker struct {
	t    *testing.T
	http *http.Client
	url  string
}

func (a *hostileTarget) openGRPC(t *testing.T) *grpcAttacker {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	tr := &http.Transport{TLSClientConfig: a.tls.Clone(), DialContext: d.DialContext, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP2(true)
	return &grpcAttacker{t, &http.Client{Transport: tr, Timeout: patience}, "https://" + a.at.String() + grpcframe.Path}
}

// Close implements io.Closer.
func (c *grpcAttacker) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// mustGet calls with the message and fails the test unless the call ends with the status.
func (c *grpcAttacker) mustGet(want grpcframe.Code, encoding string, message []byte) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url, bytes.NewReader(message))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", grpcframe.ContentType)
	req.Header.Set("Te", "trailers")
	req.Header.Set("Grpc-Encoding", encoding)
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Errorf("a message of %d bytes: %v", len(message), err)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		c.t.Error(err)
	}
	if got := resp.Header.Get(grpcframe.StatusHeader); got != want.String() {
		c.t.Errorf("%.20x… ends with status %q, want %s", message, got, want)
	}
}

// messageOf is a message with its flag for compression and an announced length.
func messageOf(flag byte, length uint32, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, length), data...)
}

// compressedMessages sends messages of 60 KiB that become 60 MiB when they are inflated.
func compressedMessages(t *testing.T, a *hostileTarget) (all []io.Closer) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat(b.Bytes(), grpcframe.MaxFrame/b.Len()-1) // members follow one another (RFC 1952, 2.2)
	bomb := messageOf(1, uint32(len(data)), data)
	if len(bomb) > grpcframe.MaxFrame {
		t.Fatalf("the message has %d bytes, which is refused for another reason", len(bomb))
	}
	for range hostileConns {
		c := a.openGRPC(t)
		for range 20 {
			c.mustGet(grpcframe.Unimplemented, "gzip", bomb)
		}
		all = append(all, c)
	}
	return all
}

// wrongLengths sends messages whose lengths are not those that they announce.
func wrongLengths(t *testing.T, a *hostileTarget) (all []io.Closer) {
	c := a.openGRPC(t)
	whole := grpcframe.Append(nil, packed(t, func(*dns.Msg) {})[lengthPrefix:])
	field := whole[5:]
	for _, message := range [][]byte{
		nil,
		whole[:3],
		whole[:5],
		whole[:len(whole)-1],
		append(bytes.Clone(whole), 0),
		append(bytes.Clone(whole), whole...),
		messageOf(0, 0, field),
		messageOf(0, uint32(len(field))-1, field),
		messageOf(0, uint32(len(field))+1, field),
		messageOf(0, 1<<32-1, field),
		messageOf(2, uint32(len(field)), field),
		messageOf(0, 3, []byte{1<<3 | 2, 0xff, 0x7f}),
		messageOf(0, 11, append([]byte{1<<3 | 2}, bytes.Repeat([]byte{0xff}, 10)...)),
	} {
		c.mustGet(grpcframe.InvalidArgument, "identity", message)
	}
	c.mustGet(grpcframe.ResourceExhausted, "identity", messageOf(0, 1<<32-1, make([]byte, grpcframe.MaxFrame)))
	return []io.Closer{c}
}
