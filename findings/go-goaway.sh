#!/usr/bin/env bash
# An HTTP/2 connection of Go's net/http does not tell its user of a GOAWAY.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
cd "$work"
printf 'module finding\n\ngo 1.26.0\n\ntoolchain go1.26.8\n' >go.mod
cat >main.go <<'GO'
// Command finding asks a server that shuts down while it still works on a request.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

func main() {
	entered, finish := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-finish
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	transport := server.Client().Transport.(*http.Transport)
	conn, err := transport.NewClientConn(context.Background(), "https", server.Listener.Addr().String())
	check(err)
	var calls atomic.Int32
	conn.SetStateHook(func(*http.ClientConn) { calls.Add(1) })
	get := func(path string) {
		r, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
		check(err)
		reply, err := conn.RoundTrip(r)
		check(err)
		check(reply.Body.Close())
	}
	get("/")
	done := make(chan struct{})
	go func() { get("/slow"); close(done) }()
	<-entered
	available, before := conn.Available(), calls.Load()
	go func() { _ = server.Config.Shutdown(context.Background()) }() // sends GOAWAY
	for until := time.Now().Add(10 * time.Second); conn.Available() > 0 && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second)
	after, failure, hooks := conn.Available(), conn.Err(), calls.Load()-before
	close(finish)
	<-done
	fmt.Println("guess:   after a GOAWAY, Err returns an error or the state hook is called, so that no request is sent there")
	fmt.Println("version:", runtime.Version(), "net/http, ClientConn")
	fmt.Printf("seen:    with a request in flight, Available goes from %d to %d, Err is %v, and the hook is called %d times\n", available, after, failure, hooks)
	if available == 0 || after != 0 || failure != nil || hooks != 0 {
		fmt.Println("CHANGED")
		os.Exit(1)
	}
	fmt.Println("same as recorded")
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
GO
CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off go build -trimpath -o finding .
./finding
