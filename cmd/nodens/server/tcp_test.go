package server

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestPipelining: queries of one connection are answered as they are ready, and no
// more of them wait at once than the limit says.
func TestPipelining(t *testing.T) {
	release := make(chan struct{})
	b := startBackend(t, func(q *dns.Msg) *dns.Msg {
		<-release
		return addressed("192.0.2.1")(q)
	})
	_, addr := start(t, Limits{}, &Zone{Name: wire.Root, Hosts: table(t, true, "192.0.2.9 by.hand"), Forward: pool(t, b.addr)})
	conn, err := dns.DialTimeout("tcp", addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	for id, name := range []string{"slow.test.", "slower.test.", "by.hand."} {
		q := question(name, dns.TypeA)
		q.Id = uint16(id)
		if err := conn.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
	}
	m, err := conn.ReadMsg()
	if err != nil || m.Id != 2 {
		t.Fatalf("the first reply is %v, %v; want that of the query that waits for nobody", m, err)
	}
	close(release)
	seen := make(map[uint16]bool)
	for range 2 {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		seen[m.Id] = true
	}
	if !seen[0] || !seen[1] {
		t.Errorf("replies to %v, want both that waited", seen)
	}
}

// TestConnLimit: a connection over the limit is closed and counted, and its place
// comes back with the end of another.
func TestConnLimit(t *testing.T) {
	s, addr := start(t, Limits{Conns: 2}, &Zone{Name: wire.Root, Hosts: table(t, false, "192.0.2.9 by.hand")})
	dial := func() *dns.Conn {
		conn, err := dns.DialTimeout("tcp", addr.String(), patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		return conn
	}
	served := func(conn *dns.Conn) bool {
		if err := conn.WriteMsg(question("by.hand.", dns.TypeA)); err != nil {
			return false
		}
		_, err := conn.ReadMsg()
		return err == nil
	}
	first, second := dial(), dial()
	if !served(first) || !served(second) {
		t.Fatal("a connection within the limit is not served")
	}
	if served(dial()) {
		t.Error("a connection over the limit is served")
	}
	if n := s.ConnsRefused(); n != 1 {
		t.Errorf("%d connections refused, want one", n)
	}
	_ = first.Close()
	eventually(t, "the place to come back", func() bool { return served(dial()) })
	if !served(second) {
		t.Error("the other connection went with it")
	}
}

// TestFrames: messages whose length is no message's.
func TestFrames(t *testing.T) {
	_, addr := start(t, Limits{}, &Zone{Name: wire.Root, Hosts: table(t, false, "192.0.2.9 by.hand")})
	for _, c := range []struct {
		name  string
		frame []byte
		reply int // bytes of the reply, 0 for the end of the connection
	}{
		{"nothing", []byte{0, 0}, 0},
		{"less than a header", []byte{0, 3, 1, 2, 3}, 0},
		{"as long as can be", append([]byte{0xFF, 0xFF}, make([]byte, 65535)...), wire.HeaderLen},
		{"a response", append([]byte{0, 12, 0, 1, 0x80}, make([]byte, 9)...), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.DialTimeout("tcp", addr.String(), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := conn.Write(c.frame); err != nil {
				t.Fatal(err)
			}
			var length [2]byte
			_, err = io.ReadFull(conn, length[:])
			if c.reply == 0 {
				if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("a reply of %d bytes, want the end of the connection", binary.BigEndian.Uint16(length[:]))
				}
				return
			}
			if err != nil || int(binary.BigEndian.Uint16(length[:])) != c.reply {
				t.Errorf("a reply of %d bytes (%v), want %d", binary.BigEndian.Uint16(length[:]), err, c.reply)
			}
		})
	}
}
