// These tests use close, listen and Servers, which are not exported.

package endpoint

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

func newEndpoints() *Servers {
	return New(Options{Log: slog.New(slog.DiscardHandler)})
}

// says is a handler that writes text.
func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

// at gives what path of each address serves.
func at(path string, h http.Handler, addrs ...string) map[string]map[string]http.Handler {
	want := make(map[string]map[string]http.Handler)
	for _, addr := range addrs {
		want[addr] = map[string]http.Handler{path: h}
	}
	return want
}

// fetch asks once, over a connection of its own.
func fetch(addr string) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := c.Get("http://" + addr + "/who")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func free(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", peer.Ports(t, 1)[0])
}

// TestHTTPSocketsHandover: two sets of endpoints have the same listeners, give way to each
// other, and no request in between fails or finds nobody.
func TestHTTPSocketsHandover(t *testing.T) {
	addr, other := free(t), free(t)
	a, b := newEndpoints(), newEndpoints()
	defer b.Close()
	check.NoError(t, a.Listen(at("/who", says("a"), addr, other)))
	defer a.Close()
	files, err := a.ListenerFiles()
	if err != nil || len(files) != 2 {
		t.Fatalf("%d listeners, %v", len(files), err)
	}
	unwanted := files[other]
	b.SetInherited(files)
	check.NoError(t, b.Listen(at("/who", says("b"), addr)))
	if _, err := unwanted.Stat(); err == nil {
		t.Error("a listener that nobody wants is open")
	}
	var done sync.WaitGroup
	var asked atomic.Uint64
	stop := make(chan struct{})
	for range 2 {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := fetch(addr); err != nil {
					t.Errorf("a request failed: %v", err)
				}
				asked.Add(1)
			}
		})
	}
	for range 10 {
		for _, turn := range []struct {
			name     string
			from, to *Servers
		}{{"b", a, b}, {"a", b, a}} {
			turn.to.Resume()
			turn.from.Suspend()
			for n := asked.Load(); asked.Load() < n+5; time.Sleep(time.Millisecond) {
				if who, err := fetch(addr); err != nil || who != turn.name {
					t.Fatalf("answered by %q, %v; want %q", who, err, turn.name)
				}
			}
		}
	}
	close(stop)
	done.Wait()
	b.Close()
	if who, err := fetch(addr); err != nil || who != "a" {
		t.Errorf("after b's end: answered by %q, %v", who, err)
	}
}

// TestHTTPSuspendBusy: a request under way when the listeners go is answered.
func TestHTTPSuspendBusy(t *testing.T) {
	addr := free(t)
	begun, release := make(chan struct{}), make(chan struct{})
	a := newEndpoints()
	defer a.Close()
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-release
		_, _ = io.WriteString(w, "late")
	})
	check.NoError(t, a.Listen(at("/who", slow, addr)))
	type reply struct {
		text string
		err  error
	}
	got := make(chan reply, 1)
	go func() {
		text, err := fetch(addr)
		got <- reply{text, err}
	}()
	<-begun
	a.Suspend()
	close(release)
	if r := <-got; r.err != nil || r.text != "late" {
		t.Errorf("the request under way got %q, %v", r.text, r.err)
	}
}

// TestHTTPInherit: what is not the listener that it is said to be is not taken, and
// the address is bound anew.
func TestHTTPInherit(t *testing.T) {
	a, b := newEndpoints(), newEndpoints()
	defer a.Close()
	defer b.Close()
	wrong, addr := free(t), free(t)
	check.NoError(t, a.Listen(at("/who", says("a"), wrong)))
	files, err := a.ListenerFiles()
	check.NoError(t, err)
	b.SetInherited(map[string]*os.File{addr: files[wrong]})
	check.NoError(t, b.Listen(at("/who", says("b"), addr)))
	for at, want := range map[string]string{wrong: "a", addr: "b"} {
		if who, err := fetch(at); err != nil || who != want {
			t.Errorf("%s: answered by %q, %v; want %q", at, who, err, want)
		}
	}
}

// TestHTTPPortInUse: a port that another process has is no error, but a problem, and is served when it is free.
func TestHTTPPortInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	defer other.Close()
	taken, mine := other.Addr().String(), free(t)
	e := newEndpoints()
	defer e.Close()
	check.NoError(t, e.Listen(at("/who", says("me"), taken, mine)))
	if got, err := fetch(mine); got != "me" {
		t.Errorf("the other address says %q (%v)", got, err)
	}
	if got := e.Problem(); !strings.Contains(got, taken+" (/who): ") || e.failures.Load() != 1 {
		t.Errorf("problem %q, %d failures", got, e.failures.Load())
	}
	_ = other.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go e.Retry(ctx)
	for e.Problem() != "" {
		time.Sleep(10 * time.Millisecond)
	}
	if got, err := fetch(taken); got != "me" {
		t.Errorf("when it is free it says %q (%v)", got, err)
	}
	if err := e.Listen(at("/who", says("me"), "no.such.name.invalid:80")); err == nil {
		t.Error("a name without an address is no error")
	}
}
