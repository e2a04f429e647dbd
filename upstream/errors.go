package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"

	"github.com/nodens-dns/nodens/internal/config"
)

// localError wraps an error that says nothing about the queried name; see [ErrLocal].
type localError struct{ error }

func (e localError) Unwrap() error        { return e.error }
func (e localError) Is(target error) bool { return target == ErrLocal }

// localErrnos are the system call errors that concern this machine and its network rather
// than the server: no socket, buffer or port is available, or the packet can't be sent. A
// refused or reset connection and a timeout are the server's failures.
var localErrnos = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
	syscall.EAGAIN,                            // the socket buffer is full
	syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, // no free port, or the source address is gone
	syscall.EACCES, syscall.EPERM, // this node's firewall rules
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EMSGSIZE,
}

// isLocal reports whether err, the result of a query, is an [ErrLocal].
func isLocal(err error) bool {
	if errors.Is(err, ErrLocal) || errors.Is(err, context.Canceled) {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(localErrnos, errno)
}

// isUnreachable reports whether err says that nothing listens at the server's address or
// that there is no route to it. One such error makes the server suspect.
func isUnreachable(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// unreachableError wraps an error of a server that can't be reached; see [ErrUnreachable].
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error        { return e.error }
func (e unreachableError) Is(target error) bool { return target == ErrUnreachable }

// permanentErrors do not change while a query waits, or come from a server that is there.
var permanentErrors = []error{ErrFailed, errMismatch, errTooLong, errDoQProtocol, errNoHTTP2, errNoStatus, errNotReading, errConfiguration}

// isUnavailable reports whether err, the result of a query, says that the server can't be reached or has closed the connection
// before it replied, as servers do that restart. A server that is silent, or whose certificate is wrong, is not unavailable.
func isUnavailable(err error) bool {
	if isUnreachable(err) {
		return true
	}
	var unverified *tls.CertificateVerificationError
	var status statusError
	switch {
	case isLocal(err), isTimeout(err), errors.As(err, &unverified):
		return false
	case errors.As(err, &status):
		return status.unavailable
	}
	return !slices.ContainsFunc(permanentErrors, func(p error) bool { return errors.Is(err, p) })
}

// statusError is the error of a reply whose HTTP or gRPC status says that there is no answer.
type statusError struct {
	text        string
	unavailable bool // a proxy can't reach the server, or the server shuts down
}

func (e statusError) Error() string { return e.text }

// newHTTPStatusError returns the error for the status of r.
func newHTTPStatusError(r *http.Response) error {
	code := r.StatusCode
	return statusError{
		text:        "unexpected HTTP status " + r.Status,
		unavailable: code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout,
	}
}

// errConfiguration marks the errors of a server whose settings can't be used.
var errConfiguration = errors.New("unusable settings")

// publicError returns err as callers of the Pool see it.
func publicError(err error) error {
	switch {
	case errors.Is(err, ErrFailed), errors.Is(err, ErrClosed):
		return err
	case isTimeout(err) && !isLocal(err): // package syscall reports EAGAIN as a timeout, too
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

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
	if !q.exchange.tcp && s.protocol(false) == &protocols[config.PlainDNS] {
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
