package objects

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// testWithoutImports: without the CustomResourceDefinition of ServiceImports, only their own zone waits for them, and the
// view is saved.
func testWithoutImports(t *testing.T, api *apiserver.Server, w writer) {
	w.mustWrite(t, service("imports", "web", "10.96.60.1"))
	saved := filepath.Join(t.TempDir(), "view")
	c := &testCase{options: "multicluster clusterset.local\nstartup_timeout 2m\nsave " + saved + "\n"}
	s := startServer(t, "nodens", "", api.Kubeconfig(apiserver.Agent), []*testCase{c})
	s.await(t)
	check := func(name, answer string) {
		t.Helper()
		checkAnswer(t, "node", s.addrs[0].String(), &query{name: name, qtype: dns.TypeA, answer: answer})
	}
	check("web.imports.svc.cluster.local.", "NOERROR 10.96.60.1")
	check("no.imports.svc.cluster.local.", "NXDOMAIN")
	check("web.imports.svc.clusterset.local.", "SERVFAIL")
	s.process.Stop()
	if _, err := os.Stat(saved); err != nil {
		t.Error("the view is not saved: ", err)
	}
}

// testServers: several API servers are behind one address, and one of them is killed.
func testServers(t *testing.T, api *apiserver.Server, w writer) {
	w.mustWrite(t, service("servers", "before", "10.96.61.1"))
	first := api.Join(t)
	b := newBalancer(t, first.Addr())
	text, err := os.ReadFile(first.Kubeconfig(apiserver.Agent))
	check.NoError(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check.NoError(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(text), api.URL(), "https://"+b.Addr().String())), 0o600))
	agents := map[string]*testServer{
		"node":    startServer(t, "nodens", "", kubeconfig, []*testCase{{}}),
		"cluster": startServer(t, "nodens", "scope cluster\nendpoints all\n", kubeconfig, []*testCase{{}}),
	}
	check := func(name, answer string) {
		t.Helper()
		for scope, s := range agents {
			checkAnswer(t, scope, s.addrs[0].String(), &query{name: name + ".servers.svc.cluster.local.", qtype: dns.TypeA, answer: answer})
		}
	}
	for _, s := range agents {
		s.await(t)
	}
	check("before", "NOERROR 10.96.61.1")
	b.move(api.Addr())
	first.Kill()
	w.mustWrite(t, service("servers", "after", "10.96.61.2"))
	check("after", "NOERROR 10.96.61.2")
	check("before", "NOERROR 10.96.61.1")
	for scope, s := range agents {
		if log := s.process.Tail(); strings.Contains(log, "rejects request") || strings.Contains(log, "set back") {
			t.Errorf("%s: the change of the API server is more than a broken connection:\n%s", scope, log)
		}
	}
}

// service is a Service with a cluster IP.
func service(ns, name, ip string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"namespace": ns, "name": name},
		"spec": map[string]any{"clusterIP": ip, "ports": []any{map[string]any{"port": int64(80)}}},
	}
}

// balancer passes TCP connections on to one of several servers.
type balancer struct {
	net.Listener
	mu sync.Mutex
	to string
}

func newBalancer(t *testing.T, to string) *balancer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	b := &balancer{Listener: ln, to: to}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go b.pass(conn)
		}
	}()
	return b
}

// move makes addr the server of new connections.
func (b *balancer) move(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = addr
}

func (b *balancer) pass(conn net.Conn) {
	defer conn.Close()
	b.mu.Lock()
	to := b.to
	b.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, conn)
	}()
	_, _ = io.Copy(conn, server)
}
