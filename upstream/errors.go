package upstream

import (
	"context"
	"errors"
	"fmt"
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
