// Inside the package: the tests look at the sockets and the records of a connection.

package upstream

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// acksAtOnce reports whether the kernel acknowledges what arrives on c without a delay.
func acksAtOnce(t *testing.T, c *asyncConn) bool {
	t.Helper()
	var v int
	var failed error
	if err := c.raw.Control(func(fd uintptr) {
		v, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK)
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return v != 0
}

// TestAcknowledgedAtOnce: a reply is acknowledged at once while another one is owed, which
// a server with Nagle's algorithm holds back until then.
func TestAcknowledgedAtOnce(t *testing.T) {
	for _, secure := range []bool{false, true} {
		f, via := startLimitedFake(t, secure, holdReplies)
		via.outOfOrder = true // so that one connection takes all queries
		for range 20 {        // so that the kernel delays acknowledgments
			mustRoundTrip(t, via, "usual.test.")
		}
		via.mu.Lock()
		under := via.open[0].under
		via.mu.Unlock()
		if acksAtOnce(t, under) {
			t.Errorf("tls %t: replies are acknowledged at once while no other one is owed", secure)
		}
		held := namedQuery(t, "a.hold.test.")
		via.start(held)
		mustRoundTrip(t, via, "next.test.")
		eventually(t, "the reply is acknowledged", func() bool { return acksAtOnce(t, under) })
		answerOK(f.requests()[20])
		<-held.done
	}
}

// recordCounter has the lengths of the TLS records of application data that are read from a connection.
type recordCounter struct {
	net.Conn
	mu      sync.Mutex
	left    []byte
	records []int
}

func (c *recordCounter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, b[:n]...)
	for len(c.left) >= 5 {
		end := 5 + int(binary.BigEndian.Uint16(c.left[3:]))
		if len(c.left) < end {
			break
		}
		if c.left[0] == 23 {
			c.records = append(c.records, end)
		}
		c.left = c.left[end:]
	}
	return n, err
}

// TestRecordOfLastQuery: the last of the queries that are written together has a TLS record of its own. All arrive unchanged.
func TestRecordOfLastQuery(t *testing.T) {
	const n = 20
	a := newAuthority(t)
	cfg := a.server("dns.test")
	cfg.MaxVersion = tls.VersionTLS12 // its handshake has no records of application data
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer l.Close()
	via := newStreamTransport(l.Addr().(*net.TCPAddr).AddrPort(), connOptions{expire: time.Hour, tls: a.client("dns.test")}).(*streamTransport)
	defer via.close()
	via.outOfOrder = true // so that one connection takes all queries
	var calls []*query
	for _, name := range numberedNames(n) { // before the connection is accepted
		q := namedQuery(t, name)
		calls = append(calls, q)
		via.start(q)
	}
	raw, err := l.Accept()
	noError(t, err)
	counter := &recordCounter{Conn: raw}
	conn := tls.Server(counter, cfg)
	defer conn.Close()
	r := frameReader{buf: make([]byte, readBufSize)}
	for got := 0; got < n; {
		noError(t, r.fill(conn))
		for msg, ok := r.next(); ok; msg, ok = r.next() {
			if _, err := conn.Write(prefixed(answerA(append([]byte(nil), msg...)))); err != nil {
				t.Fatal(err)
			}
			got++
		}
	}
	for _, q := range calls {
		if <-q.done; q.err != nil {
			t.Error(q.err)
		}
	}
	counter.mu.Lock()
	defer counter.mu.Unlock()
	if r := counter.records; len(r) != 2 || r[1] >= 2*r[0]/(n-1) {
		t.Errorf("%d queries arrived in records of %d bytes, want one record for the last query and one for all others", n, r)
	}
}
