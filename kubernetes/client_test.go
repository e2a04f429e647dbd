// Internal: shortens the delays of a view.

package kubernetes

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// secure serves f over HTTP/2, counts its connections, and returns a kubeconfig for it.
func secure(t *testing.T, f *fakeapi.Server) (kubeconfig string, connections func() (open, all int)) {
	t.Helper()
	var mu sync.Mutex
	open, all := map[net.Conn]bool{}, 0
	s := httptest.NewUnstartedServer(f)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch state {
		case http.StateNew:
			open[c] = true
			all++
		case http.StateClosed:
			delete(open, c)
		default:
		}
	}
	s.StartTLS()
	t.Cleanup(func() {
		f.Disconnect()
		s.Close()
	})
	kubeconfig = filepath.Join(t.TempDir(), "config")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	writeFile(t, kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": "t"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, s.URL, ca))
	return kubeconfig, func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return len(open), all
	}
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	noError(t, os.WriteFile(path, b, 0o600))
}

// runView opens a view by a kubeconfig and runs it until end is called.
func runView(t *testing.T, kubeconfig string) (v *View, end func()) {
	t.Helper()
	cfg := testConfig(t)
	cfg.Kubeconfig = kubeconfig
	v, err := Open(cfg, Options{Now: testClock})
	noError(t, err)
	shortenDelays(v)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	end = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(end)
	return v, end
}

// Each view has one connection for all its watches, and closes it when it stops.
func TestConnectionPerView(t *testing.T) {
	f := fakeapi.Start(t)
	kubeconfig, connections := secure(t, f)
	one, endOne := runView(t, kubeconfig)
	two, endTwo := runView(t, kubeconfig)
	poll.Until(t, "both views", func() bool { return one.Synced() && two.Synced() })
	// Watches that start at the same instant dial each; one connection is kept.
	poll.Until(t, "two connections", func() bool { open, _ := connections(); return open == 2 })
	endOne()
	poll.Until(t, "one connection to close", func() bool { open, _ := connections(); return open == 1 })
	endTwo()
	poll.Until(t, "the other to close", func() bool { open, _ := connections(); return open == 0 })
}

// A client whose credentials are rejected opens a new connection with the credentials that
// its files have by then.
func TestConnectionRenewed(t *testing.T) {
	f := fakeapi.Start(t)
	kubeconfig, connections := secure(t, f)
	v, _ := runView(t, kubeconfig)
	poll.Until(t, "the view", v.Synced)
	poll.Until(t, "a single connection", func() bool { open, _ := connections(); return open == 1 })
	_, before := connections()
	f.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		if _, all := connections(); all <= before {
			return http.StatusUnauthorized, metav1.StatusReasonUnauthorized
		}
		return 0, ""
	})
	f.Disconnect()
	poll.Until(t, "another connection", func() bool { _, all := connections(); return all > before })
	f.Put(makeService("default", "x", "10.0.0.1"))
	poll.Until(t, "a new service", func() bool { return v.Stats().Services == 1 })
}

// A server whose certificate has another authority is accepted as soon as the file names
// that.
func TestConnectionNewAuthority(t *testing.T) {
	f := fakeapi.Start(t)
	kubeconfig, connections := secure(t, f)
	cfg := testConfig(t)
	cfg.Kubeconfig = kubeconfig
	rc, err := restConfig(cfg)
	noError(t, err)
	right, err := os.ReadFile(rc.CAFile)
	noError(t, err)
	writeFile(t, rc.CAFile, ca.ForTest(t).PEM())
	v, _ := runView(t, kubeconfig)
	poll.Until(t, "two refused connections", func() bool { _, all := connections(); return all >= 2 })
	if v.Synced() {
		t.Error("a server is believed that can't be verified")
	}
	writeFile(t, rc.CAFile, right)
	poll.Until(t, "the view", v.Synced)
}
