package fakeapi

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/test/ca"
)

// HTTPS is a Server that is served over HTTPS at one address, as long as it is not away. The methods that it adds must not
// be called at the same time.
type HTTPS struct {
	*Server
	Addr       string // with the port
	Kubeconfig string // path of a file
	cert       tls.Certificate
	web        *http.Server // nil while it is away
}

// idleTimeout closes connections without requests. After an outage an agent opens one for
// each watch and uses one of them; the others would be open for a minute and a half.
const idleTimeout = time.Second

// OpenHTTPS serves a new Server, which speaks protobuf, on a free port of addr, with a certificate of authority. Its
// files are in dir. The caller calls Close.
func OpenHTTPS(dir string, addr netip.Addr, authority *ca.CA) (*HTTPS, error) {
	s := &HTTPS{Server: New(), Addr: netip.AddrPortFrom(addr, 0).String(), Kubeconfig: filepath.Join(dir, "kubeconfig")}
	s.UseProtobuf()
	var err error
	if s.cert, err = authority.Server(addr.String()); err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "api-ca.pem")
	if err := os.WriteFile(root, authority.PEM(), 0o600); err != nil {
		return nil, err
	}
	if err := s.Return(); err != nil {
		return nil, err
	}
	if err := WriteKubeconfig(s.Kubeconfig, "https://"+s.Addr, root); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// GoAway closes the listener and all connections.
func (s *HTTPS) GoAway() {
	if s.web != nil {
		s.web.Close()
		s.web = nil
	}
}

// Return listens again.
func (s *HTTPS) Return() error {
	ln, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("starting the API server: %w", err)
	}
	s.Addr = ln.Addr().String()
	web := &http.Server{
		Handler: s.Server, IdleTimeout: idleTimeout, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.cert}},
	}
	s.web = web
	go func() { _ = web.ServeTLS(ln, "", "") }()
	return nil
}

// Close ends all watches and goes away.
func (s *HTTPS) Close() {
	s.Server.Close()
	s.GoAway()
}

// WriteKubeconfig writes a kubeconfig file to path, for a server at the URL with a certificate of the CA
// in the file root.
func WriteKubeconfig(path, url, root string) error {
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, url, root)
	return os.WriteFile(path, []byte(text), 0o600)
}
