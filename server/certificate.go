package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
)

// checkInterval is the least time between two checks of a certificate's files. A rotation
// takes effect within it.
const checkInterval = time.Second

// Certificate is a server certificate for TLS that reloads itself. Its files are checked
// when a connection or a scrape arrives, at most once a second. Changes apply to new
// connections. If the new files cannot be used, the old certificate stays in use, and the
// failure is counted and logged. A Certificate is safe for concurrent use.
type Certificate struct {
	cfg      config.TLSServer
	log      *slog.Logger
	interval time.Duration // checkInterval, except in tests

	lastCheck atomic.Int64 // when the files were last checked, by package clock
	current   atomic.Pointer[keyPair]
	failed    atomic.Uint64

	mu    sync.Mutex
	files []filewatch.File
}

// keyPair is what was loaded from the files.
type keyPair struct {
	expiry time.Time
	// The settings for DNS over TLS, HTTPS, QUIC, HTTP/3 and gRPC.
	dot, doh, doq, doh3, grpc *tls.Config
}

// NewCertificate loads the files in cfg. An error names the file at fault.
func NewCertificate(cfg config.TLSServer, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cfg: cfg, log: log, interval: checkInterval}
	c.lastCheck.Store(int64(clock.Now()))
	for _, path := range []string{cfg.Cert, cfg.Key, cfg.CA} {
		if path != "" {
			c.files = append(c.files, filewatch.File{Path: path})
		}
	}
	c.filesChanged()
	return c, c.load()
}

// File returns the path of the certificate file.
func (c *Certificate) File() string { return c.cfg.Cert }

// Expiry returns when the certificate in use expires.
func (c *Certificate) Expiry() time.Time {
	c.checkFiles()
	return c.current.Load().expiry
}

// ReloadFailures returns the number of changes to the files that could not be used.
func (c *Certificate) ReloadFailures() uint64 {
	c.checkFiles()
	return c.failed.Load()
}

// TLS returns the settings for a new connection that is not for DNS.
func (c *Certificate) TLS() *tls.Config { return c.tlsConfig(config.DNSOverTLS) }

// tlsConfig returns the settings for a new connection.
func (c *Certificate) tlsConfig(t config.Transport) *tls.Config {
	c.checkFiles()
	m := c.current.Load()
	switch t {
	case config.DNSOverHTTPS:
		return m.doh
	case config.DNSOverQUIC:
		return m.doq
	case config.DNSOverHTTP3:
		return m.doh3
	case config.DNSOverGRPC:
		return m.grpc
	default:
		return m.dot
	}
}

// checkFiles reloads the files if they have changed. It does nothing if the last check was
// less than checkInterval ago or another goroutine is checking.
func (c *Certificate) checkFiles() {
	last, now := c.lastCheck.Load(), clock.Now()
	if now < time.Duration(last)+c.interval || !c.lastCheck.CompareAndSwap(last, int64(now)) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.filesChanged() {
		return
	}
	if err := c.load(); err != nil {
		c.failed.Add(1)
		c.log.Error("certificate not reloaded, keeping the old one", "file", c.cfg.Cert, "err", err)
		return
	}
	c.log.Info("certificate reloaded", "file", c.cfg.Cert, "expires", c.current.Load().expiry)
}

// filesChanged reports whether a file has changed, appeared or disappeared since the last call.
func (c *Certificate) filesChanged() (changed bool) {
	for i := range c.files {
		differs, _ := c.files[i].Changed() // load has the error
		changed = changed || differs
	}
	return changed
}

// load reads the files and puts them into use. Session ticket keys are renewed with them,
// so that a client admitted under an old certificate or root has to authenticate again.
func (c *Certificate) load() error {
	cert, roots, err := c.cfg.Load()
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	base := &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   c.cfg.ClientAuth,
		ClientCAs:    roots,
		MinVersion:   tls.VersionTLS12, // RFC 9325, 3.1.1
	}
	m := &keyPair{expiry: cert.Leaf.NotAfter, dot: base, doh: base.Clone()}
	m.doh.NextProtos = []string{"h2", "http/1.1"}
	m.doq, m.doh3 = quicTLS(base, "doq"), quicTLS(base, "h3") // RFC 9250, 4.1.1; RFC 9114, 3.1
	m.grpc = base.Clone()
	m.grpc.NextProtos = []string{"h2"}
	// Most stub resolvers offer no ALPN protocol, and some offer one of their own, which
	// would fail the handshake. Only clients that offer "dot" get it back
	// (RFC 7858, 3.2; IANA's registry of ALPN).
	named := base.Clone()
	named.NextProtos = []string{"dot"}
	m.dot.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Contains(hello.SupportedProtos, "dot") {
			return named, nil
		}
		return nil, nil
	}
	c.current.Store(m)
	if time.Now().After(m.expiry) {
		c.log.Warn("certificate has expired", "file", c.cfg.Cert, "expired", m.expiry)
	}
	return nil
}

// quicTLS returns base for connections over QUIC (RFC 9001, 4.2) with the ALPN protocol proto.
func quicTLS(base *tls.Config, proto string) *tls.Config {
	t := base.Clone()
	t.MinVersion, t.NextProtos = tls.VersionTLS13, []string{proto}
	return t
}
