package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"
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
