package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// unansweredPackets is from how many packets sent since the last one from the server the
// server owes an acknowledgment: it acknowledges every second one at once (RFC 9000,
// 13.2.2), while one may be an acknowledgment itself, which gets none.
const unansweredPackets = 2

// doqSocket is the UDP socket of one QUIC connection, as quic-go uses it. It is connected,
// so that the kernel drops packets from other addresses and reports ICMP errors. These do
// not end the connection, because they can be forged.
//
// quic-go would use more features of a [net.UDPConn]: it would raise the socket buffers to 7
// MiB, and write a warning to standard error if it may not.
type doqSocket struct {
	udp *net.UDPConn
	to  net.Addr
	// onError is called with errors that leave the socket usable.
	onError func(error)
	// unanswered counts the packets sent since the last one from the server.
	unanswered atomic.Int32
}

// openDoQSocket opens a socket to the server at to. A source that is invalid leaves the
// choice to the system.
func openDoQSocket(ctx context.Context, source netip.Addr, to netip.AddrPort) (*doqSocket, error) {
	var d net.Dialer
	if source.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return nil, err
	}
	return &doqSocket{udp: conn.(*net.UDPConn), to: conn.RemoteAddr()}, nil
}

// ReadFrom is [net.PacketConn.ReadFrom].
func (s *doqSocket) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, err := s.udp.Read(b)
		switch {
		case err == nil:
			s.unanswered.Store(0)
			return n, s.to, nil
		case !isRecoverable(err):
			return 0, nil, err
		}
		s.onError(err)
	}
}

// WriteTo is [net.PacketConn.WriteTo]. A packet that can't be sent counts as lost.
func (s *doqSocket) WriteTo(b []byte, _ net.Addr) (int, error) {
	s.unanswered.Add(1)
	if _, err := s.udp.Write(b); err != nil {
		if !isRecoverable(err) {
			return 0, err
		}
		s.onError(err)
	}
	return len(b), nil
}

// Close is [net.PacketConn.Close].
func (s *doqSocket) Close() error { return s.udp.Close() }

// LocalAddr is [net.PacketConn.LocalAddr].
func (s *doqSocket) LocalAddr() net.Addr { return s.udp.LocalAddr() }

// SetDeadline is [net.PacketConn.SetDeadline].
func (s *doqSocket) SetDeadline(t time.Time) error { return s.udp.SetDeadline(t) }

// SetReadDeadline is [net.PacketConn.SetReadDeadline].
func (s *doqSocket) SetReadDeadline(t time.Time) error { return s.udp.SetReadDeadline(t) }

// SetWriteDeadline is [net.PacketConn.SetWriteDeadline].
func (s *doqSocket) SetWriteDeadline(t time.Time) error { return s.udp.SetWriteDeadline(t) }

// SetReadBuffer keeps the system's default, which holds more than doqConnWindow allows the
// server to send.
func (s *doqSocket) SetReadBuffer(int) error { return nil }

// SetWriteBuffer keeps the system's default.
func (s *doqSocket) SetWriteBuffer(int) error { return nil }

// The protocol errors of a server (RFC 9250, 4.3.3), for which the connection is closed.
var (
	errDoQProtocol = errors.New("the server violates DNS over QUIC")
	errNonzeroID   = fmt.Errorf("%w: the ID of the reply is not 0", errDoQProtocol)
	errTwoReplies  = fmt.Errorf("%w: more than one reply on the stream", errDoQProtocol)
	errCutOff      = fmt.Errorf("%w: the stream ends within the reply", errDoQProtocol)
)

// isConnFailure reports whether err, of a stream, says that its connection has ended.
func isConnFailure(err error) bool {
	var stream *quic.StreamError
	switch {
	case err == nil, errors.As(err, &stream), errors.Is(err, errDoQProtocol), errors.Is(err, errMismatch):
		return false
	case errors.Is(err, net.ErrClosed):
		return true
	}
	return !isTimeout(err) && !isLocal(err)
}

// doqCodeNames has the names of the error codes.
var doqCodeNames = map[uint64]string{
	doqNoError:          "DOQ_NO_ERROR",
	doqInternalError:    "DOQ_INTERNAL_ERROR",
	doqProtocolError:    "DOQ_PROTOCOL_ERROR",
	doqRequestCancelled: "DOQ_REQUEST_CANCELLED",
	doqExcessiveLoad:    "DOQ_EXCESSIVE_LOAD",
}

// doqCodeName returns the name of an error code.
func doqCodeName(code uint64) string {
	if name, ok := doqCodeNames[code]; ok {
		return name
	}
	return fmt.Sprintf("error code %#x", code)
}

// noALPN is the TLS alert no_application_protocol as a QUIC error code (RFC 9001, 4.8).
const noALPN = 0x100 + 120

// readableError adds to an error of quic-go what it means for the operator.
func readableError(err error) error {
	var (
		app     *quic.ApplicationError
		stream  *quic.StreamError
		conn    *quic.TransportError
		version *quic.VersionNegotiationError
		reset   *quic.StatelessResetError
	)
	switch {
	case errors.As(err, &app) && app.Remote:
		return fmt.Errorf("the server closed the connection with %s: %w", doqCodeName(uint64(app.ErrorCode)), err)
	case errors.As(err, &stream) && stream.Remote:
		return fmt.Errorf("the server reset the stream with %s: %w", doqCodeName(uint64(stream.ErrorCode)), err)
	case errors.As(err, &version):
		return fmt.Errorf("the server speaks no version of QUIC that the agent does; check that it is a server of DNS over QUIC: %w", err)
	case errors.As(err, &reset):
		return fmt.Errorf("the server has lost the connection, probably by a restart: %w", err)
	case errors.As(err, &conn) && (conn.ErrorCode == noALPN || strings.Contains(conn.Error(), "ALPN")):
		return fmt.Errorf("the server does not offer DNS over QUIC (ALPN %s); check the port: %w", doqALPN, err)
	}
	return err
}
