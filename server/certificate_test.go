// These tests use interval, lastCheck and tlsConfig, which are not exported.

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// Inside the package: it sets how often files are checked.

// writeCertificate writes a certificate to folder.
func writeCertificate(t testing.TB, a *ca.Test, folder, name string, until time.Time) config.TLSServer {
	t.Helper()
	cert, key := a.ServerFiles(t, folder, name, until)
	return config.TLSServer{Cert: cert, Key: key}
}

func mustCertificate(t testing.TB, files config.TLSServer) *Certificate {
	t.Helper()
	c, err := NewCertificate(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.interval = 0
	return c
}

// startListener serves zones on a loopback address with cfg, and with a new certificate
// unless cfg has one, until the test ends. The roots are those of the new certificate.
func startListener(t testing.TB, limits Limits, cfg ListenerConfig, zones ...*resolver.Zone) (*Server, netip.AddrPort, *x509.CertPool) {
	t.Helper()
	var roots *x509.CertPool
	if cfg.Certificate == nil {
		a := ca.ForTest(t)
		cfg.Certificate, roots = mustCertificate(t, writeCertificate(t, a, t.TempDir(), "a server", time.Now().Add(time.Hour))), a.Pool()
	}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	s := New(slog.New(slog.DiscardHandler), limits)
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr, QUIC: cfg.Transport.OverQUIC()}: withRoutes(cfg, zones...)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s, addr, roots
}

func withRoutes(cfg ListenerConfig, zones ...*resolver.Zone) ListenerConfig {
	for _, z := range zones {
		if z.Stats == nil {
			z.Stats = resolver.NewStats()
		}
	}
	cfg.Routes = resolver.NewRoutes(zones, resolver.NewStats())
	cfg.Routes.Clients = clients.New(clients.Options{})
	return cfg
}

// servedName returns the common name of the certificate that a new connection gets.
func servedName(c *Certificate) string {
	return c.tlsConfig(config.DNSOverTLS).Certificates[0].Leaf.Subject.CommonName
}

// TestCertificate: what is in the files is in force, unless it can't be used.
func TestCertificate(t *testing.T) {
	a, folder := ca.ForTest(t), t.TempDir()
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	files := writeCertificate(t, a, folder, "first", until)
	c := mustCertificate(t, files)
	is := func(name string, failed uint64) {
		t.Helper()
		for range 3 { // what failed once is not tried again
			if got := servedName(c); got != name {
				t.Errorf("%q is shown, want %q", got, name)
			}
		}
		if n := c.ReloadFailures(); n != failed {
			t.Errorf("%d changes failed, want %d", n, failed)
		}
	}
	is("first", 0)
	if !c.Expiry().Equal(until) {
		t.Errorf("ends at %s, want %s", c.Expiry(), until)
	}
	writeCertificate(t, a, folder, "second", until.Add(time.Hour))
	is("second", 0)
	if !c.Expiry().Equal(until.Add(time.Hour)) {
		t.Errorf("ends at %s, want an hour later than %s", c.Expiry(), until)
	}
	agenttest.ReplaceFile(t, files.Cert, []byte("no certificate"))
	is("second", 1)
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	is("second", 2)
	other := t.TempDir()
	writeCertificate(t, a, other, "third", until)
	for i, name := range []string{"cert.pem", "key.pem"} {
		text, err := os.ReadFile(filepath.Join(other, name))
		if err != nil {
			t.Fatal(err)
		}
		agenttest.ReplaceFile(t, filepath.Join(folder, name), text)
		is([]string{"second", "third"}[i], 3) // a certificate with no key, and then its own
	}
	writeCertificate(t, a, folder, "old", time.Now().Add(-time.Minute))
	is("old", 3) // clients say whether they take it
}

// TestCertificateCheckInterval: files are looked at once in a while, not for each connection.
func TestCertificateCheckInterval(t *testing.T) {
	a, folder := ca.ForTest(t), t.TempDir()
	c := mustCertificate(t, writeCertificate(t, a, folder, "first", time.Now().Add(time.Hour)))
	c.interval = time.Hour
	writeCertificate(t, a, folder, "second", time.Now().Add(time.Hour))
	if got := servedName(c); got != "first" {
		t.Errorf("%q is shown before its time", got)
	}
	c.lastCheck.Store(c.lastCheck.Load() - int64(time.Hour))
	if got := servedName(c); got != "second" {
		t.Errorf("%q is shown when it is time to look", got)
	}
}

// TestCertificateMounted: a mounted Secret is changed by one symbolic link.
func TestCertificateMounted(t *testing.T) {
	a, folder := ca.ForTest(t), t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
		writeCertificate(t, a, filepath.Join(folder, name), name, time.Now().Add(time.Hour))
	}
	link := filepath.Join(folder, "data")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	c := mustCertificate(t, config.TLSServer{Cert: filepath.Join(link, "cert.pem"), Key: filepath.Join(link, "key.pem")})
	if got := servedName(c); got != "one" {
		t.Errorf("%q is shown", got)
	}
	if err := os.Symlink("two", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	if got := servedName(c); got != "two" {
		t.Errorf("%q is shown after the change", got)
	}
}

// TestCertificateOnNewConns: over each transport a new connection gets the certificate that replaces another one. The
// connections that are open go on.
func TestCertificateOnNewConns(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS, config.DNSOverGRPC, config.DNSOverQUIC, config.DNSOverHTTP3} {
		t.Run(via.String(), func(t *testing.T) {
			a, folder := ca.ForTest(t), t.TempDir()
			cert := mustCertificate(t, writeCertificate(t, a, folder, "first", time.Now().Add(time.Hour)))
			_, addr, _ := startListener(t, patientLimits(), ListenerConfig{Transport: via, Certificate: cert}, byHand(t))
			cfg := &tls.Config{RootCAs: a.Pool()}
			open := newPersistentClient(t, via, addr, cfg)
			defer open.close()
			if err := open.ask(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"first", "second", "third"} {
				writeCertificate(t, a, folder, name, time.Now().Add(time.Hour))
				if got := shownName(t, via, addr, cfg); got != name {
					t.Errorf("%q is shown, want %q", got, name)
				}
				if err := open.ask(); err != nil {
					t.Errorf("on the connection that was open: %v", err)
				}
			}
		})
	}
}

// shownName returns the common name of the certificate that a new connection gets from the network.
func shownName(t *testing.T, via config.Transport, addr netip.AddrPort, cfg *tls.Config) string {
	t.Helper()
	if via.OverQUIC() {
		c, err := dialOverQUIC(addr, withALPN(cfg, addr, map[bool]string{true: "doq", false: "h3"}[via == config.DNSOverQUIC]), loopback, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		return c.ConnectionState().TLS.PeerCertificates[0].Subject.CommonName
	}
	cfg = cfg.Clone()
	if via != config.DNSOverTLS {
		cfg.NextProtos = []string{"h2"}
	}
	c, err := dialTLS(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}

// TestCertificateMissing: an error at the start names the file.
func TestCertificateMissing(t *testing.T) {
	folder := t.TempDir()
	_, err := NewCertificate(config.TLSServer{Cert: folder + "/none", Key: folder + "/none"}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), folder+"/none") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// patientLimits returns limits under which no connection ends because the machine is busy.
func patientLimits() Limits {
	return Limits{IdleTimeout: patience, ReadTimeout: patience, WriteTimeout: patience}
}

// asClient returns settings of a client with a certificate, or without one if it is empty, and the number of handshakes
// in which the server has asked for it. An HTTP/3 client that learns too late that it was refused connects again.
func asClient(roots *x509.CertPool, cert tls.Certificate) (handshakes *atomic.Uint64, cfg *tls.Config) {
	handshakes = new(atomic.Uint64)
	return handshakes, &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		handshakes.Add(1)
		return &cert, nil
	}}
}

// TestClientAuth checks that clients must authenticate as the configuration says.
func TestClientAuth(t *testing.T) {
	a, folder := ca.ForTest(t), t.TempDir()
	files := writeCertificate(t, a, folder, "a server", time.Now().Add(time.Hour))
	files.CA = a.RootFile(t, folder)
	stranger := ca.ForTest(t).ClientCert(t)
	for _, tt := range []struct {
		name             string
		auth             tls.ClientAuthType
		none, own, other bool // who comes in: without a certificate, with one, with a stranger's
	}{
		{"none", tls.NoClientCert, true, true, true},
		{"request", tls.RequestClientCert, true, true, true},
		{"require", tls.RequireAnyClientCert, false, true, true},
		{"if given", tls.VerifyClientCertIfGiven, true, true, false},
		{"verify", tls.RequireAndVerifyClientCert, false, true, false},
	} {
		for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS, config.DNSOverQUIC, config.DNSOverHTTP3} {
			t.Run(tt.name+" "+via.String(), func(t *testing.T) {
				files.ClientAuth = tt.auth
				s, addr, _ := startListener(t, patientLimits(), ListenerConfig{Transport: via, Certificate: mustCertificate(t, files)}, byHand(t))
				failed := uint64(0)
				for _, c := range []struct {
					name string
					cert tls.Certificate
					want bool
				}{{"none", tls.Certificate{}, tt.none}, {"own", a.ClientCert(t), tt.own}, {"stranger's", stranger, tt.other}} {
					handshakes, cfg := asClient(a.Pool(), c.cert)
					err := askOnce(t, via, addr, cfg)
					if (err == nil) != c.want {
						t.Errorf("%s: error %v, comes in: want %t", c.name, err, c.want)
					}
					if !c.want {
						failed += handshakes.Load()
						eventually(t, "the handshake to be counted", func() bool { return s.HandshakesFailed() == failed })
					}
				}
				if n := s.HandshakesFailed(); n != failed {
					t.Errorf("%d handshakes failed, want %d", n, failed)
				}
			})
		}
	}
}
