package server

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// coreDNSStreams is how many queries CoreDNS allows in flight on a connection over QUIC, HTTP/3 and gRPC. Its own plugin
// grpc has one connection to each server.
const coreDNSStreams = 256

// TestParallelQueries checks that a connection over QUIC, HTTPS and gRPC has as many queries in flight as one to CoreDNS.
func TestParallelQueries(t *testing.T) {
	_, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
	for i := range coreDNSStreams {
		if _, err := c.OpenStream(); err != nil {
			t.Errorf("stream %d over QUIC: %v", i+1, err)
			break
		}
	}
	for _, via := range []config.Transport{config.DNSOverHTTPS, config.DNSOverGRPC} {
		_, addr, roots := startListener(t, patientLimits(), ListenerConfig{Transport: via}, byHand(t))
		if n := http2Streams(t, addr.String(), withALPN(&tls.Config{RootCAs: roots}, addr, "h2")); n < coreDNSStreams {
			t.Errorf("transport %v: a client may have %d streams, want %d", via, n, coreDNSStreams)
		}
	}
}

// http2Streams returns SETTINGS_MAX_CONCURRENT_STREAMS of a server (RFC 9113, 6.5.2).
func http2Streams(t *testing.T, addr string, cfg *tls.Config) uint32 {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil || head[3] != h2Settings {
		t.Fatalf("the first frame is % x: %v", head, err)
	}
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(conn, settings); err != nil {
		t.Fatal(err)
	}
	for ; len(settings) >= 6; settings = settings[6:] {
		if binary.BigEndian.Uint16(settings) == 3 {
			return binary.BigEndian.Uint32(settings[2:])
		}
	}
	t.Fatal("the server does not say how many streams it allows")
	return 0
}
