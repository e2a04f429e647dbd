package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// InNamespace calls f on a thread in the namespace and returns its error. A socket that f opens stays
// in the namespace. f must not open sockets in other goroutines.
func InNamespace(ns string, f func() error) error {
	file, err := os.Open("/run/netns/" + ns)
	if err != nil {
		return fmt.Errorf("entering namespace %s: %w", ns, err)
	}
	defer file.Close()
	return InNamespaceFile(file, f)
}

// InNamespaceFile is InNamespace for the file of a namespace.
func InNamespaceFile(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering namespace %s: %w", ns.Name(), err)
		}
		return f()
	})
}

// NewNamespace makes a network namespace without a name. It lasts as long as the file, or a socket or
// process in it.
func NewNamespace() (file *os.File, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a namespace: %w", err)
		}
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return file, err
}

// onThread calls f on a thread whose namespace f may change. The thread then returns to its namespace. It is not the main
// thread, whose namespace other programs take for that of the process.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			result <- onThread(f) // on another one, as this goroutine keeps the thread
			runtime.UnlockOSThread()
			return
		}
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- err
			return
		}
		defer home.Close()
		err = f()
		back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread() // else it ends with the goroutine
		}
		result <- errors.Join(err, back)
	}()
	return <-result
}

// Dial connects from a namespace to an address without a host name.
func Dial(ns, network, address string) (conn net.Conn, err error) {
	err = InNamespace(ns, func() error {
		conn, err = net.Dial(network, address)
		return err
	})
	return conn, err
}

// Relay forwards TCP connections to the address inside a namespace to the same address outside the
// namespaces until Close. It makes a server on this machine's loopback reachable on a node's.
func (l *Network) Relay(ns, address string) error {
	var at net.Listener
	err := InNamespace(ns, func() (err error) {
		at, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	l.Cleanup(func() {
		stop()
		at.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			from, err := at.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { copyBoth(ctx, from, address) })
		}
	})
	return nil
}

// copyBoth copies both ways until one side ends it or ctx is done.
func copyBoth(ctx context.Context, from net.Conn, address string) {
	defer from.Close()
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return // the client sees the end of the connection
	}
	defer to.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(from.Close(), to.Close()) })()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(to, from)
		_ = errors.Join(from.Close(), to.Close())
	})
	_, _ = io.Copy(from, to)
	_ = errors.Join(from.Close(), to.Close())
	wg.Wait()
}
