package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// localError is an error that says nothing about the name that was asked for: see
// [ErrLocal].
type localError struct{ error }

func (e localError) Unwrap() error        { return e.error }
func (e localError) Is(target error) bool { return target == ErrLocal }

// localErrnos are the errors of system calls that are about this machine and its network,
// and not about the server: no place for a socket, a packet or a port, no way to send it
// out. A connection that is refused or reset, or where nothing comes back, is the server's.
var localErrnos = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
	syscall.EAGAIN,                            // a socket that takes no more
	syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, // no port left, or the source address is gone
	syscall.EACCES, syscall.EPERM, // this node's own rules
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EMSGSIZE,
}

// isLocal reports whether err, of a flight, is to be an [ErrLocal].
func isLocal(err error) bool {
	if errors.Is(err, ErrLocal) || errors.Is(err, context.Canceled) {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(localErrnos, errno)
}

// isUnreachable reports whether err says that there is no server, or no way to it: one
// such error is enough to doubt it.
func isUnreachable(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// publicError is err as the callers of the pool know it.
func publicError(err error) error {
	switch {
	case errors.Is(err, ErrFailed), errors.Is(err, ErrClosed):
		return err
	case isTimeout(err) && !isLocal(err): // to package syscall a full socket is a time-out
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}
