package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// queryError is the failure of a query to one server.
type queryError struct {
	error         // for callers of the Pool, which it wraps
	cause         error
	local, server netip.AddrPort // local is not valid where it is not known
	network       string
}

// newQueryError returns the error of q for callers of the Pool, which get public. The cause is err. local is the address that q
// was sent from; it is not valid where it is not known, as for a query that a transport still has.
func newQueryError(q *query, local netip.AddrPort, public, err error) error {
	s := q.attempt.server
	e := queryError{error: fmt.Errorf("asking %s: %w", s.label, public), cause: err, local: local, server: s.addr, network: "tcp"}
	// CoreDNS does not ask over TCP because nothing comes back over UDP, as an exchange does.
	if _, ok := s.udp.(*udpTransport); ok && !q.exchange.tcp {
		e.network = "udp"
	}
	return e
}

func (e queryError) Unwrap() error { return e.error }

// NetText returns the error of an exchange in the words of package net, which CoreDNS logs and the patterns of `errors`
// are written for, such as "read udp 10.0.0.1:4711->192.0.2.1:53: i/o timeout". A local address that is not known
// is 0.0.0.0:0 or [::]:0. It returns "" if err is no failure of a query to a server.
func NetText(err error) string {
	if errors.Is(err, ErrNoUpstream) {
		return "no healthy proxies"
	}
	var e queryError
	if !errors.As(err, &e) {
		return ""
	}
	text, network := e.causeText()
	if !network {
		return text
	}
	var op *net.OpError
	if errors.As(e.cause, &op) && op.Op == "dial" && e.network == "tcp" {
		return fmt.Sprintf("dial %s %s: %s", e.network, e.server, text)
	}
	if !e.local.IsValid() {
		e.local = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
		if e.server.Addr().Is4() {
			e.local = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		}
	}
	return fmt.Sprintf("read %s %s->%s: %s", e.network, e.local, e.server, text)
}

// causeText returns the text of the cause in the words of package net, and whether the network has failed.
func (e queryError) causeText() (text string, network bool) {
	var op *net.OpError
	var errno syscall.Errno
	switch {
	case isTimeout(e.cause) && !isLocal(e.cause):
		return "i/o timeout", true
	case e.network == "udp" && errors.As(e.cause, &errno):
		return "read: " + errno.Error(), true
	case errors.As(e.cause, &op):
		return op.Err.Error(), true
	case errors.As(e.cause, &errno):
		return "read: " + errno.Error(), true
	}
	return e.cause.Error(), false
}
