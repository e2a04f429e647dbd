// Command podload sends thousands of DNS queries per second from inside a pod. It runs jobs
// of test/rig/load for a client outside, which must not depend on the API server, the
// kubelet or DNS while it does so.
//
//	podload serve ADDRESS   in the pod: runs a job for each TCP connection
//	podload dial ADDRESS    outside: connects standard input and output with that pod
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodens-dns/nodens/test/rig/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podload:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		l, err := net.Listen("tcp", args[1])
		if err != nil {
			return err
		}
		return serve(ctx, l)
	}
	if len(args) == 2 && args[0] == "dial" {
		return dial(ctx, args[1], os.Stdin, os.Stdout)
	}
	return errors.New("want `podload serve ADDRESS` or `podload dial ADDRESS`")
}

// maxJobs limits the jobs that run at once. A test runs two; the rest is for the kubelet's
// probes, which are connections, too.
const maxJobs = 4

// serve runs the jobs of the listener's connections until ctx is done. Then it closes the
// listener and returns; running jobs end with the process.
func serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxJobs)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := load.Serve(conn, conn); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "podload:", err)
			}
		}()
	}
}

// dial copies in to the address, and what it sends back to out, until the connection or ctx
// ends.
func dial(ctx context.Context, addr string, in io.Reader, out io.Writer) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, in) // the pod sees where it breaks
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(out, conn)
	return err
}
