package main

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
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// apiServer serves a scripted API server over HTTPS at a fixed address, as long as it is not
// away.
type apiServer struct {
	*fakeapi.Server
	addr       string
	kubeconfig string // path
	cert       tls.Certificate
	web        *http.Server // nil while it is away
}

// idleTimeout closes connections without requests. After an outage an agent opens one for
// each watch and uses one of them; the others would be open for a minute and a half.
const idleTimeout = time.Second

func openAPI(dir string, authority *ca.CA) (*apiServer, error) {
	s := &apiServer{Server: fakeapi.New(), addr: netip.AddrPortFrom(worldAddr, 0).String(), kubeconfig: filepath.Join(dir, "kubeconfig")}
	s.UseProtobuf()
	var err error
	if s.cert, err = authority.Server(worldAddr.String()); err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "api-ca.pem")
	if err := os.WriteFile(root, authority.PEM(), 0o600); err != nil {
		return nil, err
	}
	if err := s.back(); err != nil {
		return nil, err
	}
	if err := fakeapi.WriteKubeconfig(s.kubeconfig, "https://"+s.addr, root); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// goAway closes the listener and all connections.
func (s *apiServer) goAway() {
	if s.web != nil {
		s.web.Close()
		s.web = nil
	}
}

// back listens again.
func (s *apiServer) back() error {
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("starting the API server: %w", err)
	}
	s.addr = ln.Addr().String()
	s.web = &http.Server{
		Handler: s.Server, IdleTimeout: idleTimeout, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.cert}},
	}
	web := s.web
	go func() { _ = web.ServeTLS(ln, "", "") }()
	return nil
}

func (s *apiServer) close() {
	s.Close()
	s.goAway()
}
