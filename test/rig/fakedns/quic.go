package fakedns

import (
	"context"
	"net"

	"github.com/quic-go/quic-go"
)

// The error codes of RFC 9250, section 4.3.
const (
	quicNoError       = 0
	quicInternalError = 1
)

// quicConn is a connection of QUIC as [Server] counts it.
type quicConn struct{ *quic.Conn }

// Close closes the connection without an error.
func (c quicConn) Close() error { return c.CloseWithError(quicNoError, "") }

// listenQUIC opens the socket of a server over QUIC.
func (s *Server) listenQUIC() error {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.opts.Addr))
	if err != nil {
		return err
	}
	cfg := s.opts.TLS.Clone()
	cfg.NextProtos = []string{"doq"}
	s.quic = &quic.Transport{Conn: socket}
	if s.quicListener, err = s.quic.Listen(cfg, &quic.Config{}); err != nil {
		socket.Close()
		return err
	}
	s.addr = socket.LocalAddr().(*net.UDPAddr).AddrPort()
	return nil
}

// closeQUIC closes the socket, if there is one. The connections are closed already.
func (s *Server) closeQUIC() {
	if s.quic != nil {
		_ = s.quic.Close()
		_ = s.quic.Conn.Close()
	}
}

func (s *Server) acceptQUIC() {
	for {
		accepted, err := s.quicListener.Accept(context.Background())
		if err != nil {
			return
		}
		c := quicConn{accepted}
		if !s.track(c) || !s.spawn(func() { s.serveQUIC(c) }) {
			c.Close()
		}
	}
}

// serveQUIC answers the queries of c, each of which has a stream.
func (s *Server) serveQUIC(c quicConn) {
	defer s.untrack(c)
	defer c.Close()
	from := c.RemoteAddr().(*net.UDPAddr).AddrPort()
	for {
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		s.spawn(func() {
			if msg, err := ReadFrame(stream); err == nil {
				s.handle(msg, Query{Transport: QUIC, From: from, stream: stream})
			}
		})
	}
}

// sendStream sends b and ends the stream. A stream has one reply; others are dropped.
func (q *Query) sendStream(b []byte) {
	_, _ = q.stream.Write(b)
	_ = q.stream.Close()
}

// resetStream resets the stream.
func (q *Query) resetStream() { q.stream.CancelWrite(quicInternalError) }
