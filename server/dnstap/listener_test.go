// Inside the package: the tests read control frames and queues.

package dnstap

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
)

// await waits until ok returns true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hangTimeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waiting for %s", what)
		}
	}
}

// listenTap returns a tap that listens on a unix socket, and runs it.
func listenTap(t *testing.T, queue int) (tap *Tap, path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	tap = New(config.Dnstap{Listen: true, Network: "unix", Address: path, Queue: queue}, "v", slog.New(slog.DiscardHandler))
	return tap, path, runTap(t, tap)
}

// dialUnix connects to path, as soon as there is a listener.
func dialUnix(t *testing.T, path string) (conn net.Conn) {
	t.Helper()
	await(t, "the listener", func() (ok bool) {
		var err error
		conn, err = net.Dial("unix", path)
		return err == nil
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// join connects a collector to path and waits until it is the nth.
func join(t *testing.T, tap *Tap, path string, n int) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := dialUnix(t, path)
	r := (&collector{t: t}).handshake(conn)
	await(t, "the collector to be counted", func() bool { return tap.Collectors() == n })
	return conn, r
}

// TestListener: each collector gets the messages from when it connects until it goes; without one they
// are not kept. The end of the tap ends each stream, and removes the socket.
func TestListener(t *testing.T) {
	tap, path, stop := listenTap(t, 10)
	tap.Send(clientQuery(1))
	c := &collector{t: t}
	first, fromFirst := join(t, tap, path, 1)
	tap.Send(clientQuery(2))
	second, fromSecond := join(t, tap, path, 2)
	tap.Send(clientQuery(3))
	for _, want := range []int{2, 3} {
		if got := c.frame(fromFirst); got != want {
			t.Errorf("the first collector got %d, want %d", got, want)
		}
	}
	if got := c.frame(fromSecond); got != 3 {
		t.Errorf("the second collector got %d, want 3", got)
	}
	_ = first.Close()
	await(t, "the first collector to be forgotten", func() bool { return tap.Collectors() == 1 })
	tap.Send(clientQuery(4))
	if got := c.frame(fromSecond); got != 4 {
		t.Errorf("the second collector got %d, want 4", got)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if got := c.frame(fromSecond); got != -1 {
			t.Errorf("the second collector got %d, want the end of the stream", got)
		}
		_, _ = second.Write(controlFrame(controlFinish, ""))
	}()
	stop()
	<-ended
	if n := tap.Dropped(); n != 0 {
		t.Errorf("%d messages were dropped", n)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestSlowCollector: a collector that does not read loses messages, which are counted; another one
// gets all.
func TestSlowCollector(t *testing.T) {
	tap, path, _ := listenTap(t, 8)
	join(t, tap, path, 1)
	_, r := join(t, tap, path, 2)
	c := &collector{t: t}
	m := clientQuery(1)
	m.Packet = make([]byte, 60_000) // a few fill the socket's buffer
	sent := 0
	for ; tap.Dropped() == 0; sent++ {
		if sent == 10_000 {
			t.Fatal("no message was dropped")
		}
		tap.Send(m)
		if got := c.frame(r); got != 1 {
			t.Fatalf("message %d to the other collector is %d", sent, got)
		}
	}
	if sent <= 8 {
		t.Errorf("dropped after %d messages, but 8 may wait", sent)
	}
}

// TestTooManyCollectors: connections beyond the limit are closed, also while the others have not
// completed the handshake. A place is free again when a connection ends.
func TestTooManyCollectors(t *testing.T) {
	_, path, _ := listenTap(t, 10)
	var conns []net.Conn
	for range maxCollectors {
		conn := dialUnix(t, path)
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatalf("no READY: %v", err)
		}
		conns = append(conns, conn)
	}
	refused := dialUnix(t, path)
	if n, err := refused.Read(make([]byte, 1)); err == nil {
		t.Fatalf("%d bytes for one collector too many", n)
	}
	_ = conns[0].Close()
	await(t, "a place", func() bool {
		_, err := dialUnix(t, path).Read(make([]byte, 1))
		return err == nil
	})
}

// TestListenerSuspended: a suspended tap frees its address for another process, and takes it back.
func TestListenerSuspended(t *testing.T) {
	tap, path, _ := listenTap(t, 10)
	conn, r := join(t, tap, path, 1)
	next := New(config.Dnstap{Listen: true, Network: "unix", Address: path, Queue: 10}, "v", slog.New(slog.DiscardHandler))
	stopNext := runTap(t, next)
	tap.Suspend()
	tap.Suspend()
	if got := (&collector{t: t}).frame(r); got != -1 {
		t.Errorf("the collector got %d, want the end of the stream", got)
	}
	_, _ = conn.Write(controlFrame(controlFinish, ""))
	join(t, next, path, 1)
	await(t, "the suspended tap to have no collector", func() bool { return tap.Collectors() == 0 })
	stopNext()
	tap.Resume()
	tap.Resume()
	join(t, tap, path, 1)
}

// TestStaleSocket: the socket of a process that has died gives way; another file does not.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := removeStale(t.Context(), path); err == nil {
		t.Error("the socket of a living process was removed")
	}
	_ = ln.Close()
	if err := removeStale(t.Context(), path); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeStale(t.Context(), path); err == nil {
		t.Error("a file was removed")
	}
}

// TestListenerTLS: a collector needs a certificate if the tap asks for one.
func TestListenerTLS(t *testing.T) {
	authority := ca.ForTest(t)
	cert, err := authority.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", peer.Ports(t, 1)[0])
	tap := New(config.Dnstap{Listen: true, Network: "tls", Address: address, Queue: 10}, "v", slog.New(slog.DiscardHandler))
	tap.TLS = func() *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool()}
	}
	runTap(t, tap)
	dial := func(certs ...tls.Certificate) (conn net.Conn) {
		await(t, "the listener", func() bool {
			d := tls.Dialer{Config: &tls.Config{RootCAs: authority.Pool(), Certificates: certs}}
			var err error
			conn, err = d.DialContext(context.Background(), "tcp", address)
			return err == nil
		})
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	stranger := dial()
	if _, err := stranger.Read(make([]byte, 1)); err == nil {
		t.Error("a collector without a certificate got a stream")
	}
	r := (&collector{t: t}).handshake(dial(authority.ClientCert(t)))
	await(t, "the collector to be counted", func() bool { return tap.Collectors() == 1 })
	tap.Send(clientQuery(7))
	if got := (&collector{t: t}).frame(r); got != 7 {
		t.Errorf("message %d, want 7", got)
	}
}
