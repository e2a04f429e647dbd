package server

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
)

// checkInterval is how often the files of a certificate are looked at, where somebody
// asks for it: a rotation is in force a second later. With half of it the three
// looks would only be more; with twice as much, who replaces a broken certificate
// waits for nothing.
const checkInterval = time.Second

// Certificate is what servers over TLS show their clients. Its files are looked at
// when a connection or a scrape comes, at most once a second; what has changed there
// holds for the connections that come from then on. Files that can't be used change
// nothing but a counter and the log. It is safe for concurrent use.
type Certificate struct {
	cfg      config.TLSServer
	log      *slog.Logger
	interval time.Duration // lookEvery, but for tests

	lastCheck atomic.Int64 // when the files were looked at, by package clock
	current   atomic.Pointer[keyPair]
	failed    atomic.Uint64

	mu    sync.Mutex
	files [3]fs.FileInfo // as they were when they were read; nil is no file
}

// keyPair is what files made.
type keyPair struct {
	expiry   time.Time
	dot, doh *tls.Config
}

// NewCertificate reads the files that cfg names. Its error names the one at fault.
func NewCertificate(cfg config.TLSServer, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cfg: cfg, log: log, interval: checkInterval}
	c.lastCheck.Store(int64(clock.Now()))
	c.files = c.stat()
	return c, c.load()
}

// File is the path of the certificate.
func (c *Certificate) File() string { return c.cfg.Cert }

// Expiry is when the certificate in force ends.
func (c *Certificate) Expiry() time.Time {
	c.checkFiles()
	return c.current.Load().expiry
}

// ReloadFailures counts changes of the files that could not be used.
func (c *Certificate) ReloadFailures() uint64 {
	c.checkFiles()
	return c.failed.Load()
}

// tlsConfig are what a connection that comes now is served with.
func (c *Certificate) tlsConfig(t config.Transport) *tls.Config {
	c.checkFiles()
	m := c.current.Load()
	if t == config.DNSOverHTTPS {
		return m.doh
	}
	return m.dot
}

// checkFiles looks whether the files have changed, unless somebody has just done so.
func (c *Certificate) checkFiles() {
	last, now := c.lastCheck.Load(), clock.Now()
	if now < time.Duration(last)+c.interval || !c.lastCheck.CompareAndSwap(last, int64(now)) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	files := c.stat()
	if slices.EqualFunc(files[:], c.files[:], sameFile) {
		return
	}
	c.files = files // before they are read: what changes from here on is seen the next time
	if err := c.load(); err != nil {
		c.failed.Add(1)
		c.log.Error("tls: the old certificate stays", "file", c.cfg.Cert, "err", err)
		return
	}
	c.log.Info("tls: a new certificate is in force", "file", c.cfg.Cert, "expires", c.current.Load().expiry)
}

// stat looks at the files, by way of the symbolic links that a mounted Secret is
// made of.
func (c *Certificate) stat() (files [3]fs.FileInfo) {
	for i, path := range []string{c.cfg.Cert, c.cfg.Key, c.cfg.CA} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			files[i] = info
		}
	}
	return files
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// load reads the files and puts what they make in force. With them the keys of
// session tickets are new: whoever is let in on account of an old certificate or an
// old root is asked again.
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
	// Most stub resolvers name no protocol, and some name one of their own, which
	// would end the handshake: the protocol's name is only for those that know it
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
		c.log.Warn("tls: the certificate has expired, so that clients will not take it", "file", c.cfg.Cert, "expired", m.expiry)
	}
	return nil
}
