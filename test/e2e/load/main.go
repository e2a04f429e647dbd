// Command load asks a DNS server thousands of questions a second from inside of a pod, as
// package test/node/load does it, for somebody outside who must not depend on the API
// server, the kubelet or DNS meanwhile.
//
//	load serve ADDRESS   in the pod: does a job for each TCP connection
//	load dial ADDRESS    outside: joins standard input and output with that pod
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

	"github.com/nodens-dns/nodens/test/node/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
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
	return errors.New("want `load serve ADDRESS` or `load dial ADDRESS`")
}

// maxJobs is how many there are at once: two kinds of names are asked for at a time. Half of
// it would have a probe of the kubelet's, which is a connection too, take a job's place.
const maxJobs = 4

// serve does the jobs that come over the listener's connections, and returns once ctx is
// done. The listener is closed then; jobs under way end with the process.
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
				fmt.Fprintln(os.Stderr, "load:", err)
			}
		}()
	}
}

// dial sends in to the address until it ends, and writes to out what comes back until
// that ends, or ctx does.
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
