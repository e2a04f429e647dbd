package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/tentative"
)

// httpServers are the HTTP servers of health, readiness and metrics. Several
// directives may name one address; their paths then share its server. They are safe
// for concurrent use.
type httpServers struct {
	log    *slog.Logger
	errors *log.Logger // of the servers
	// reusePort: share addresses with another agent, beside which this one starts if a
	// handover is not possible.
	reusePort bool
	// local reports whether an address is the node's own (see [httpConns]); nil: none is.
	local  func(netip.Addr) bool
	counts httpCounts

	mu        sync.Mutex
	servers   map[string]*httpServer
	inherited map[string]*os.File // of setInherited, until listen takes or closes them
}

// httpServer is one HTTP address. Its handler can be swapped while it serves.
type httpServer struct {
	ln        *net.TCPListener
	server    *http.Server
	conns     *httpConns
	handler   atomic.Pointer[http.ServeMux]
	suspended *os.File // the listener between suspend and resume, else nil
}

// httpTimeout bounds a request. Probes and scrapes take milliseconds.
const httpTimeout = 10 * time.Second

// maxHeader bounds a request's header, in bytes.
const maxHeader = 16 << 10

// listen serves exactly the given handlers, by address and path. It binds new addresses first:
// on an error nothing has changed, except that unused inherited listeners are closed.
func (e *httpServers) listen(want map[string]map[string]http.Handler) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh, err := e.bind(want)
	e.closeInherited()
	if err != nil {
		return err
	}
	for addr, s := range e.servers {
		if want[addr] == nil {
			s.close()
			delete(e.servers, addr)
		}
	}
	for addr, paths := range want {
		mux := http.NewServeMux()
		for path, h := range paths {
			mux.Handle(path, h)
		}
		s := e.servers[addr]
		if s == nil {
			s = e.newServer()
			s.handler.Store(mux)
			e.serve(s, fresh[addr])
			e.servers[addr] = s
		}
		s.handler.Store(mux)
	}
	return nil
}

// bind listens on the addresses that have no server yet. On an error it closes all of them.
func (e *httpServers) bind(want map[string]map[string]http.Handler) (map[string]*net.TCPListener, error) {
	fresh := make(map[string]*net.TCPListener)
	for addr := range want {
		if e.servers[addr] != nil {
			continue
		}
		if fresh[addr] = e.takeInherited(addr); fresh[addr] != nil {
			continue
		}
		ln, err := e.listenTCP(addr)
		if err != nil {
			delete(fresh, addr)
			for _, ln := range fresh {
				_ = ln.Close()
			}
			return nil, fmt.Errorf("listening for health, ready or metrics on %s: %w; choose another address in the Corefile, or in --metrics-listen-address", addr, err)
		}
		fresh[addr] = ln.(*net.TCPListener)
	}
	return fresh, nil
}

// listenTCP listens at addr.
func (e *httpServers) listenTCP(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !e.reusePort {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, failed)
	}}
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	at, invalid := netip.ParseAddrPort(addr)
	if invalid != nil || !errors.Is(err, unix.EADDRNOTAVAIL) {
		return ln, err
	}
	switch state, waited := tentative.Await(at.Addr()); {
	case waited && state == tentative.Assigned:
		return lc.Listen(context.Background(), "tcp", addr)
	case state.Problem() != "":
		return nil, fmt.Errorf("%w: %s", err, state.Problem())
	}
	return nil, err
}

func (e *httpServers) newServer() *httpServer {
	s := &httpServer{conns: newHTTPConns(e.local, &e.counts)}
	s.server = &http.Server{
		Handler:           s.conns.handler(func(w http.ResponseWriter, r *http.Request) { s.handler.Load().ServeHTTP(w, r) }),
		ConnContext:       connContext,
		ReadTimeout:       httpTimeout,
		ReadHeaderTimeout: httpTimeout,
		WriteTimeout:      httpTimeout,
		IdleTimeout:       2 * time.Minute, // longer than a scrape interval, so that its connection is reused
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          e.errors,
	}
	return s
}

// serve makes s serve the connections of ln, until either is closed.
func (e *httpServers) serve(s *httpServer, ln *net.TCPListener) {
	s.ln = ln
	go func() {
		if err := s.server.Serve(s.conns.listener(ln)); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			e.log.Error("HTTP server stopped", "address", ln.Addr(), "err", err)
		}
	}()
}

// close closes all servers. Another process with the same listeners is not affected.
func (e *httpServers) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeInherited()
	for addr, s := range e.servers {
		s.close()
		delete(e.servers, addr)
	}
}

func (s *httpServer) close() {
	_ = s.server.Close()
	if s.suspended != nil {
		_ = s.suspended.Close()
	}
}

// status returns a handler for a probe: 200 and "OK" if check returns nil, else 503 and the
// error. What notice (nil: none) returns is the second line.
func status(check func() error, notice func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		text := "OK"
		if notice != nil {
			if line := notice(); line != "" {
				text += "\n" + line
			}
		}
		_, _ = io.WriteString(w, text)
	})
}

// selfProbe measures the response time of the agent's own health endpoint, which rises first
// when the process lacks CPU.
type selfProbe struct {
	duration *stat.Histogram
	failed   atomic.Uint64
}

// selfProbeInterval is the interval of probes. CoreDNS's is a second.
const selfProbeInterval = 5 * time.Second

// run probes address until ctx ends.
func (p *selfProbe) run(ctx context.Context, address string) {
	client := &http.Client{Timeout: selfProbeInterval}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(selfProbeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		start := time.Now()
		err := requestHealth(ctx, client, address)
		if ctx.Err() != nil {
			return
		}
		p.duration.Observe(time.Since(start).Seconds())
		if err != nil {
			p.failed.Add(1)
		}
	}
}

// requestHealth requests /health at addr.
func requestHealth(ctx context.Context, client *http.Client, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHeader))
	_ = resp.Body.Close()
	return nil
}
