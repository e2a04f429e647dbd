// Inside the package: the tests use TLS transports without a Pool.

package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
)

// authority signs certificates for tests.
type authority struct {
	*ca.Test
	t    testing.TB
	file string // its certificate in PEM
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	c := ca.ForTest(t)
	return &authority{Test: c, t: t, file: c.RootFile(t, t.TempDir())}
}

// writeFile writes text to a new file and returns its path.
func writeFile(t testing.TB, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.pem")
	noError(t, os.WriteFile(path, text, 0o600))
	return path
}

// server returns the TLS configuration of a server with these names and addresses.
func (a *authority) server(names ...string) *tls.Config {
	a.t.Helper()
	return a.serverWith(ca.ServerTemplate(names...))
}

func (a *authority) serverWith(c *x509.Certificate) *tls.Config {
	a.t.Helper()
	cert, err := a.Sign(c)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// client returns the TLS configuration of a client that trusts a.
func (a *authority) client(serverName string) *tls.Config {
	a.t.Helper()
	cfg, err := newTLSConfig(&config.TLSClient{CA: a.file}, serverName)
	if err != nil {
		a.t.Fatal(err)
	}
	return cfg
}

// startFakeTLS starts a fake behind TLS.
func startFakeTLS(t *testing.T, cfg *tls.Config, s script) *fake {
	t.Helper()
	f := &fake{t: t, tls: cfg}
	f.run(s)
	return f
}

// roundTripOnce sends fixedQuery's query over via.
func roundTripOnce(t *testing.T, via transport) error {
	t.Helper()
	_, err := roundTrip(t.Context(), via, fixedQuery(t), time.Now().Add(20*time.Second))
	return err
}

// TestTLS: the server's certificate and the configuration decide whether the server is
// used.
func TestTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	past := &x509.Certificate{DNSNames: []string{"dns.test"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	old := a.server("dns.test")
	old.MaxVersion = tls.VersionTLS11
	old.MinVersion = tls.VersionTLS10
	tests := []struct {
		name   string
		server *tls.Config
		client *tls.Config
		want   string // part of the error; "" for none
	}{
		{"the name", a.server("dns.test"), a.client("dns.test"), ""},
		{"the address, without a name", a.server("127.0.0.1"), a.client(""), ""},
		{"another name", a.server("other.test"), a.client("dns.test"), "valid for other.test, not dns.test"},
		{"another address", a.server("127.0.0.2"), a.client(""), "127.0.0.1"},
		{"expired", a.serverWith(past), a.client("dns.test"), "certificate has expired"},
		{"another authority", other.server("dns.test"), a.client("dns.test"), "unknown authority"},
		{"a TLS too old", old, a.client("dns.test"), "protocol version"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFakeTLS(t, tt.server, answerOK)
			var broken atomic.Uint64
			via := newStreamTransport(f.addr, connOptions{tls: tt.client, expire: time.Hour, brokenConns: &broken})
			defer via.close()
			err := roundTripOnce(t, via)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "TLS handshake") {
				t.Errorf("the error is %v; want one of the TLS handshake, about %q", err, tt.want)
			}
			if broken.Load() != 1 {
				t.Errorf("%d connections are counted as broken, want 1", broken.Load())
			}
			if len(f.requests()) != 0 || openSocketCount(via) != 0 {
				t.Error("a query went out, or the connection is kept")
			}
		})
	}
}

// TestResumption: the second connection resumes the first one's session.
func TestResumption(t *testing.T) {
	a := newAuthority(t)
	var resumed []bool
	cfg := a.server("dns.test")
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		resumed = append(resumed, s.DidResume)
		return nil
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		resumed = nil
		cfg := cfg.Clone()
		cfg.MaxVersion = version
		f := startFakeTLS(t, cfg, answerOK)
		via := newStreamTransport(f.addr, connOptions{tls: a.client("dns.test")}) // no idle connection is kept
		for range 2 {
			noError(t, roundTripOnce(t, via))
			eventually(t, "the connection is closed", func() bool { return f.open() == 0 && openSocketCount(via) == 0 })
		}
		via.close()
		if len(resumed) != 2 || resumed[0] || !resumed[1] {
			t.Errorf("%s: resumed %v, want only the second", tls.VersionName(version), resumed)
		}
	}
}

// TestClientCertificate: a server that requests a client certificate gets it.
func TestClientCertificate(t *testing.T) {
	a := newAuthority(t)
	own, err := a.Client("node")
	noError(t, err)
	cert, key, err := ca.PEM(own)
	noError(t, err)
	files := &config.TLSClient{Cert: writeFile(t, cert), Key: writeFile(t, key), CA: a.file}
	known, err := newTLSConfig(files, "dns.test")
	noError(t, err)
	cfg := a.server("dns.test")
	cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, a.Pool()
	f := startFakeTLS(t, cfg, answerOK)
	via := newStreamTransport(f.addr, connOptions{tls: known, expire: time.Hour})
	defer via.close()
	if err := roundTripOnce(t, via); err != nil {
		t.Error(err)
	}
	unknown := newStreamTransport(f.addr, connOptions{tls: a.client("dns.test"), expire: time.Hour})
	defer unknown.close()
	if err := roundTripOnce(t, unknown); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v; want that one is required", err)
	}
}

// TestTLSFiles: missing or invalid files are errors that name them.
func TestTLSFiles(t *testing.T) {
	a := newAuthority(t)
	empty := writeFile(t, nil)
	for name, cfg := range map[string]*config.TLSClient{
		"a CA that is missing":           {CA: "/nonexistent/ca.pem"},
		"a CA without a certificate":     {CA: empty},
		"a key that is missing":          {Cert: a.file, Key: "/nonexistent/key.pem"},
		"a certificate that is no match": {Cert: a.file, Key: empty},
	} {
		_, err := newTLSConfig(cfg, "")
		if err == nil || !strings.HasPrefix(err.Error(), "tls: ") || !strings.Contains(err.Error(), ".pem") {
			t.Errorf("%s: %v; want an error that names the setting and the file", name, err)
		}
		if strings.Contains(name, "missing") && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v hides the cause", name, err)
		}
	}
	if cfg, err := newTLSConfig(nil, "dns.test"); err != nil || cfg.RootCAs != nil || cfg.ServerName != "dns.test" {
		t.Errorf("nothing given: %v, %v; want the system's roots", cfg, err)
	}
}

// TestSlowHandshake: queries wait while connecting; canceled ones are not sent.
func TestSlowHandshake(t *testing.T) {
	a := newAuthority(t)
	reached, release := make(chan struct{}, maxConns), make(chan struct{})
	cfg := a.server("dns.test")
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		reached <- struct{}{}
		<-release
		return nil, nil
	}
	f := startFakeTLS(t, cfg, answerOK)
	via := newStreamTransport(f.addr, connOptions{tls: a.client("dns.test"), expire: time.Hour}).(*streamTransport)
	defer via.close()
	var calls []*query
	for range 20 {
		q := fixedQuery(t) // all have the same ID
		q.deadline = time.Now().Add(time.Hour)
		via.start(q)
		calls = append(calls, q)
	}
	<-reached
	for _, q := range calls[:10] {
		if !via.cancel(q) {
			t.Error("a call that waits can't be withdrawn")
		}
	}
	close(release)
	for _, q := range calls[10:] {
		if <-q.done; q.err != nil {
			t.Errorf("a call that waited: %v", q.err)
		}
	}
	count(t, len(f.requests()), 10, "queries were sent: the ten that were waited for")
	via.mu.Lock()
	defer via.mu.Unlock()
	for c := range via.live {
		if len(c.queries) != 0 || c.orphans != 0 {
			t.Errorf("%d IDs are taken, %d of them lost, after all is over", len(c.queries), c.orphans)
		}
	}
}

// TestCloseWhileConnecting: close ends a handshake that hangs, and the queries that wait
// for it.
func TestCloseWhileConnecting(t *testing.T) {
	a := newAuthority(t)
	f := startFake(t, ignore) // takes the handshake for an incomplete message
	via := newStreamTransport(f.addr, connOptions{tls: a.client("dns.test"), expire: time.Hour})
	result := make(chan error, 1)
	q := fixedQuery(t)
	go func() {
		_, err := roundTrip(context.Background(), via, q, time.Now().Add(time.Hour))
		result <- err
	}()
	eventually(t, "the connection is open", func() bool { return f.open() == 1 })
	via.close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("a query that waited for the handshake: %v, want ErrClosed", err)
	}
	eventually(t, "the connection is closed", func() bool { return f.open() == 0 })
}
