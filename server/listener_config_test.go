// These tests use listeners, which is not exported.

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects listeners and goroutines.

// TestDoTShutdown: queries that wait are answered when the server stops, connections
// on which nothing happens and those that make no handshake end at once, and nothing is left.
func TestDoTShutdown(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS} {
		t.Run(via.String(), func(t *testing.T) {
			b, asked, release := holdingBackend(t)
			s, addr, roots := startListener(t, Limits{IdleTimeout: time.Hour, ReadTimeout: time.Hour}, ListenerConfig{Transport: via}, byHand(t, b.Addr()))
			silent, idle := dial(t, loopback, addr), openTLS(t, addr, roots)
			answered := make(chan error, 1)
			go func() { answered <- exchangeOnce(t, "slow.test.", via, addr, &tls.Config{RootCAs: roots}) }()
			<-asked
			stopped := make(chan error)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				stopped <- s.Shutdown(ctx)
			}()
			if !isClosed(silent) || !isClosed(idle) {
				t.Error("a connection on which nothing happens does not end")
			}
			close(release)
			if err := <-answered; err != nil {
				t.Errorf("the query that waited: %v", err)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			eventually(t, "goroutines to end", func() bool {
				return !runningIn("server.(*httpsServer)", "server.(*tcpConn)", "server.(*httpsConn)", "net/http.(*conn)")
			})
		})
	}
}

// TestDoTShutdownStuck: a query whose upstream never answers is dropped at the end.
func TestDoTShutdownStuck(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS, config.DNSOverQUIC, config.DNSOverHTTP3} {
		t.Run(via.String(), func(t *testing.T) {
			waits := make(chan struct{}, 16)
			b := resolvertest.StartBackend(t, func(*dns.Msg) *dns.Msg { waits <- struct{}{}; return nil })
			s, addr, roots := startListener(t, Limits{}, ListenerConfig{Transport: via}, byHand(t, b.Addr()))
			answered := make(chan error, 1)
			go func() { answered <- exchangeOnce(t, "never.test.", via, addr, &tls.Config{RootCAs: roots}) }()
			<-waits
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := s.Shutdown(ctx); err == nil {
				t.Error("nothing was dropped")
			}
			<-answered
			eventually(t, "goroutines to end", func() bool {
				return !runningIn("server.(*httpsServer)", "server.(*tcpConn)", "server.(*httpsConn)", "net/http.(*conn)")
			})
		})
	}
}

// exchangeOnce asks for name once, over a connection of its own; a SERVFAIL is an error.
func exchangeOnce(t testing.TB, name string, via config.Transport, addr netip.AddrPort, cfg *tls.Config) error {
	var m *dns.Msg
	var err error
	switch via {
	case config.DNSOverHTTPS:
		client := newHTTPS(cfg, true)
		defer client.CloseIdleConnections()
		m, _, err = client.ask(addr, question(name, dns.TypeA))
	case config.DNSOverHTTP3:
		client := newHTTP3(cfg)
		defer client.close()
		m, _, err = client.ask(addr, question(name, dns.TypeA))
	case config.DNSOverQUIC:
		var c *doqClient
		if c, err = dialDoQ(t, addr, cfg); err == nil {
			defer c.close()
			m, err = c.ask(name)
		}
	default:
		c := dns.Client{Net: "tcp-tls", TLSConfig: cfg, Timeout: patience}
		m, _, err = c.Exchange(question(name, dns.TypeA), addr.String())
	}
	if err == nil && m.Rcode != dns.RcodeSuccess {
		err = errors.New(dns.RcodeToString[m.Rcode])
	}
	return err
}

// runningIn reports whether a goroutine is in one of the functions.
func runningIn(functions ...string) bool {
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	for _, f := range functions {
		if strings.Contains(stacks, f) {
			return true
		}
	}
	return false
}

// TestDoTReload: certificates and routes that change under load cost no query.
func TestDoTReload(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS, config.DNSOverGRPC} {
		t.Run(via.String(), func(t *testing.T) {
			a, folder := ca.ForTest(t), t.TempDir()
			writeCertificate(t, a, folder, "0", time.Now().Add(time.Hour))
			cert := mustCertificate(t, writeCertificate(t, a, folder, "0", time.Now().Add(time.Hour)))
			door := ListenerConfig{Transport: via, Certificate: cert}
			s, addr, _ := startListener(t, patientLimits(), door, byHand(t))
			cfg := &tls.Config{RootCAs: a.Pool()}
			var done atomic.Bool
			var rounds atomic.Int64
			var clients sync.WaitGroup
			for range 2 { // on one connection, and on one after the other
				clients.Go(func() {
					stays := newPersistentClient(t, via, addr, cfg)
					defer stays.close()
					for !done.Load() {
						if err := stays.ask(); err != nil {
							t.Errorf("on one connection: %v", err)
							return
						}
						rounds.Add(1)
					}
				})
				clients.Go(func() {
					for !done.Load() {
						if err := askOnce(t, via, addr, cfg); err != nil {
							t.Errorf("on a new connection: %v", err)
							return
						}
						rounds.Add(1)
					}
				})
			}
			for i := range 10 {
				name := itoa(i + 1)
				writeCertificate(t, a, folder, name, time.Now().Add(time.Hour))
				if i == 5 {
					agenttest.ReplaceFile(t, folder+"/cert.pem", []byte("broken"))
					eventually(t, "the broken one to be seen", func() bool { return cert.ReloadFailures() > 0 })
				}
				if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: withRoutes(door, byHand(t))}); err != nil {
					t.Error(err)
				}
				before := rounds.Load()
				eventually(t, "some queries", func() bool { return rounds.Load() > before+20 || t.Failed() })
			}
			done.Store(true)
			clients.Wait()
			if got := servedName(cert); got != "10" {
				t.Errorf("%q is shown at the end", got)
			}
			if cert.ReloadFailures() == 0 {
				t.Error("no change failed")
			}
		})
	}
}

// persistentClient is a client that keeps its connection.
type persistentClient struct {
	ask   func() error
	close func()
}

func newPersistentClient(t testing.TB, via config.Transport, addr netip.AddrPort, cfg *tls.Config) persistentClient {
	answer := func(m *dns.Msg, err error) error {
		if err == nil && len(m.Answer) != 1 {
			return errors.New("no answer")
		}
		return err
	}
	failed := func(err error) persistentClient { return persistentClient{func() error { return err }, func() {}} }
	switch via {
	case config.DNSOverHTTPS:
		client := newHTTPS(cfg, true)
		return persistentClient{func() error {
			m, _, err := client.ask(addr, question("by.hand.", dns.TypeA))
			return answer(m, err)
		}, client.CloseIdleConnections}
	case config.DNSOverHTTP3:
		client := newHTTP3(cfg)
		return persistentClient{func() error {
			m, _, err := client.ask(addr, question("by.hand.", dns.TypeA))
			return answer(m, err)
		}, client.close}
	case config.DNSOverGRPC:
		client := grpcpeer.Dial(t, addr, cfg)
		return persistentClient{func() error { return answer(askGRPC(client, question("by.hand.", dns.TypeA))) }, client.Close}
	case config.DNSOverQUIC:
		client, err := dialDoQ(t, addr, cfg)
		if err != nil {
			return failed(err)
		}
		return persistentClient{func() error { return answer(client.ask("by.hand.")) }, client.close}
	}
	conn, err := dialTLS(addr, cfg)
	if err != nil {
		return failed(err)
	}
	return persistentClient{func() error {
		_ = conn.SetDeadline(time.Now().Add(patience))
		return askOver(conn)
	}, func() { _ = conn.Close() }}
}

// TestListenChangesTransport: an address may change its transport; an address that stays keeps what it
// can.
func TestListenChangesTransport(t *testing.T) {
	a := ca.ForTest(t)
	cert := mustCertificate(t, writeCertificate(t, a, t.TempDir(), "a server", time.Now().Add(time.Hour)))
	plain, plainGRPC := ListenerConfig{}, ListenerConfig{Transport: config.DNSOverGRPC}
	s, addr, _ := startListener(t, Limits{}, ListenerConfig{Transport: config.DNSOverTLS, Certificate: cert}, byHand(t))
	cfg := &tls.Config{RootCAs: a.Pool()}
	works := func(c ListenerConfig) error {
		switch {
		case c.Transport != config.PlainDNS && c.Certificate == nil:
			return askOnce(t, c.Transport, addr, nil)
		case c.Transport != config.PlainDNS:
			return askOnce(t, c.Transport, addr, cfg)
		}
		for _, network := range []string{"udp", "tcp"} {
			if m := query(t, network, addr, question("by.hand.", dns.TypeA)); len(m.Answer) != 1 {
				return fmt.Errorf("over %s: %v", network, m)
			}
		}
		return nil
	}
	for i, door := range []ListenerConfig{
		plain,
		{Transport: config.DNSOverHTTPS, Certificate: cert},
		{Transport: config.DNSOverHTTPS, Certificate: cert, Timeouts: config.Timeouts{Idle: time.Minute}},
		{Transport: config.DNSOverTLS, Certificate: cert},
		{Transport: config.DNSOverTLS, Certificate: cert, Timeouts: config.Timeouts{Idle: time.Minute}},
		plain,
		plainGRPC,
		{Transport: config.DNSOverGRPC, Certificate: cert},
		plainGRPC,
	} {
		before := s.listeners[ListenAddr{AddrPort: addr}]
		if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: withRoutes(door, byHand(t))}); err != nil {
			t.Fatal(err)
		}
		if kept := s.listeners[ListenAddr{AddrPort: addr}] == before; kept != (i == 4) {
			t.Errorf("%d: the sockets stay: %t", i, kept)
		}
		if err := works(door); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}
