package upstream

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"time"
)

const (
	// maxBusyTCP bounds the connections in use per server, each with one query.
	// At 1 ms each that is half a million queries a second; with a silent server
	// and a read timeout of 2 s, 256 a second that wait. RFC 7766, 6.2.2, asks
	// clients for few connections, so it is a quarter of the bound on UDP.
	maxBusyTCP = 512
	// maxIdleTCP is how many are kept: as for UDP, but each is also state in the
	// server.
	maxIdleTCP = 64
)

// tcp is one query at a time over a connection (RFC 7766).
type tcp struct {
	to   netip.AddrPort
	stop context.Context // ends dials when the Pool closes
}

func newTCP(to netip.AddrPort, bounds pooling, stop context.Context) *conns {
	return newConns(tcp{to, stop}, bounds)
}

// dial is [protocol.dial]. Connections live for seconds: no keep-alives.
func (t tcp) dial(ctx context.Context, until time.Time) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	defer context.AfterFunc(t.stop, cancel)()
	d := net.Dialer{KeepAlive: -1}
	conn, err := d.DialTCP(ctx, "tcp", netip.AddrPort{}, t.to)
	if err != nil {
		if t.stop.Err() != nil {
			return nil, ErrClosed
		}
		return nil, err // not conn: an interface with a nil pointer in it is not nil
	}
	return conn, nil
}

// talk is [protocol.talk]. Query and length go out in one write, since servers
// exist that read only one segment (RFC 7766, 8), and what is there is read at
// once. Bytes behind the reply mean that the two ends disagree about what was
// asked: the connection is not kept.
func (t tcp) talk(conn net.Conn, c *call) (msg []byte, keep bool, err error) {
	if _, err := conn.Write(c.frame); err != nil {
		return nil, false, err
	}
	have := 0
	for {
		end, got, err := readFrame(conn, c, have)
		if err != nil {
			return nil, false, err
		}
		if msg := c.reply[2:end]; c.accepts(msg) {
			return msg, got == end, nil
		}
		have = copy(c.reply, c.reply[end:got])
	}
}

// readFrame reads until c.reply, which holds have bytes already, starts with a
// whole message and its length. end is the offset behind it, got the bytes read.
func readFrame(conn io.Reader, c *call, have int) (end, got int, err error) {
	for {
		end = 2
		if have >= 2 {
			end += int(binary.BigEndian.Uint16(c.reply))
		}
		if have >= 2 && have >= end {
			return end, have, nil
		}
		c.room(end)
		n, err := conn.Read(c.reply[have:])
		have += n
		if err != nil && n == 0 {
			if err == io.EOF && have > 0 {
				err = io.ErrUnexpectedEOF
			}
			return 0, 0, err
		}
	}
}
