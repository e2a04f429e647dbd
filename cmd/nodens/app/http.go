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
	want      httpHandlers        // of the last listen
	failed    map[string]error    // addresses of want that the kernel refuses; retry tries them again
	toldAt    time.Time           // when failed was logged
	paused    bool                // between suspend and resume
	// failures counts refused addresses.
	failures atomic.Uint64
}

// httpHandlers are handlers by address and path.
type httpHandlers = map[string]map[string]http.Handler

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
	e.want, e.failed = nil, nil
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
