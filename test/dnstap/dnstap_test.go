// Package dnstap checks server/dnstap against golang-dnstap, the reference
// implementation, and compares what a message costs with either. It is a module of its own
// so that the agent does not depend on the library.
package dnstap

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	"google.golang.org/protobuf/proto"

	"github.com/nodens-dns/nodens/internal/config"
	tap "github.com/nodens-dns/nodens/server/dnstap"
)

// hangTimeout ends a test that would hang; no test measures it.
const hangTimeout = 30 * time.Second

// collect starts golang-dnstap's collector on a unix socket and returns the frames that it
// receives.
func collect(t testing.TB, path string) <-chan []byte {
	t.Helper()
	in, err := dnstap.NewFrameStreamSockInputFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	frames := make(chan []byte, 1024)
	go in.ReadInto(frames)
	return frames
}

// run runs to until the end of the test.
func run(t testing.TB, to *tap.Tap) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		to.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// TestFields: golang-dnstap decodes every field of a message as it was sent.
func TestFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	frames := collect(t, path)
	to := tap.New(config.Dnstap{Network: "unix", Address: path, Queue: 100, Identity: "node-1", Version: "v1"}, "", slog.New(slog.DiscardHandler))
	run(t, to)
	query, response := time.Unix(1_700_000_000, 123_456_789), time.Unix(1_700_000_001, 987_654_321)
	for _, c := range []struct {
		name string
		m    tap.Message
		want *dnstap.Message
		addr string
	}{
		{"query over UDP", tap.Message{Type: tap.ClientQuery, Protocol: tap.UDP, Client: netip.MustParseAddrPort("192.0.2.7:4242"), Query: query, Packet: []byte("packet"), Extra: []byte("extra")},
			&dnstap.Message{QueryMessage: []byte("packet")}, "192.0.2.7"},
		{"response over TCP", tap.Message{Type: tap.ClientResponse, Protocol: tap.TCP, Client: netip.MustParseAddrPort("[2001:db8::7]:65535"), Query: query, Response: response, Packet: make([]byte, 65535)},
			&dnstap.Message{ResponseMessage: make([]byte, 65535)}, "2001:db8::7"},
		{"without a packet", tap.Message{Type: tap.ClientQuery, Protocol: tap.UDP, Client: netip.MustParseAddrPort("[::ffff:192.0.2.7]:1"), Query: query},
			&dnstap.Message{}, "192.0.2.7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind, family, protocol := dnstap.Message_Type(c.m.Type), dnstap.SocketFamily_INET, dnstap.SocketProtocol(c.m.Protocol)
			addr := netip.MustParseAddr(c.addr)
			if addr.Is6() {
				family = dnstap.SocketFamily_INET6
			}
			c.want.Type, c.want.SocketFamily, c.want.SocketProtocol = &kind, &family, &protocol
			c.want.QueryAddress, c.want.QueryPort = addr.AsSlice(), proto.Uint32(uint32(c.m.Client.Port()))
			c.want.QueryTimeSec, c.want.QueryTimeNsec = proto.Uint64(uint64(query.Unix())), proto.Uint32(uint32(query.Nanosecond()))
			if !c.m.Response.IsZero() {
				c.want.ResponseTimeSec, c.want.ResponseTimeNsec = proto.Uint64(uint64(response.Unix())), proto.Uint32(uint32(response.Nanosecond()))
			}
			want := &dnstap.Dnstap{Type: dnstap.Dnstap_MESSAGE.Enum(), Identity: []byte("node-1"), Version: []byte("v1"), Extra: c.m.Extra, Message: c.want}
			to.Send(&c.m)
			select {
			case frame := <-frames:
				got := new(dnstap.Dnstap)
				if err := proto.Unmarshal(frame, got); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(got, want) {
					t.Errorf("received\n%v\nwant\n%v", got, want)
				}
			case <-time.After(hangTimeout):
				t.Fatal("no message arrived")
			}
		})
	}
}
