package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
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

// httpRetry is the time between two attempts to listen at an address that was refused.
const httpRetry = 5 * time.Second

// listen serves exactly the given handlers. It binds new addresses first: on an error nothing has changed, except
// that unused inherited listeners are closed. An address that the kernel refuses, such as a port in use, is no error,
// because DNS is served without it: it is logged and counted, and [httpServers.retry] tries again.
func (e *httpServers) listen(want httpHandlers) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listenLocked(want)
}

// listenLocked is listen for callers that hold e.mu.
func (e *httpServers) listenLocked(want httpHandlers) error {
	fresh, failed, err := e.bind(want)
	e.closeInherited()
	if err != nil {
		return err
	}
	for addr, s := range e.servers {
		if want[addr] == nil {
			s.close()
			delete(e.servers, addr)
			continue
		}
		s.handler.Store(newMux(want[addr]))
	}
	for addr, ln := range fresh {
		s := e.newServer()
		s.handler.Store(newMux(want[addr]))
		e.serve(s, ln)
		e.servers[addr] = s
	}
	e.want = want
	e.setFailed(failed)
	return nil
}

func newMux(paths map[string]http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	for path, h := range paths {
		mux.Handle(path, h)
	}
	return mux
}

// bind listens on the addresses that have no server yet. failed are those that the kernel refuses. On an error it
// closes all of them.
func (e *httpServers) bind(want httpHandlers) (fresh map[string]*net.TCPListener, failed map[string]error, err error) {
	fresh, failed = make(map[string]*net.TCPListener), make(map[string]error)
	for addr := range want {
		if e.servers[addr] != nil {
			continue
		}
		if ln := e.takeInherited(addr); ln != nil {
			fresh[addr] = ln
			continue
		}
		var errno syscall.Errno
		switch ln, err := e.listenTCP(addr); {
		case err == nil:
			fresh[addr] = ln.(*net.TCPListener)
		case errors.As(err, &errno):
			failed[addr] = err
		default:
			for _, ln := range fresh {
				_ = ln.Close()
			}
			return nil, nil, fmt.Errorf("listening for health, ready or metrics on %s: %w; choose another address in the Corefile, or in --metrics-listen-address", addr, err)
		}
	}
	return fresh, failed, nil
}

// setFailed records and logs the addresses that are refused. The caller holds e.mu.
func (e *httpServers) setFailed(failed map[string]error) {
	e.failures.Add(uint64(len(failed)))
	told := time.Since(e.toldAt) < time.Minute
	for addr, err := range failed {
		if told && e.failed[addr] != nil {
			continue
		}
		e.toldAt = time.Now()
		e.log.Error("health, ready, metrics or pprof are not served at an address; trying again", "address", addr, "paths", slices.Sorted(maps.Keys(e.want[addr])), "err", err)
	}
	for addr := range e.failed {
		if failed[addr] == nil && e.servers[addr] != nil {
			e.log.Info("an address of health, ready, metrics or pprof is served again", "address", addr)
		}
	}
	e.failed = failed
}

// retry listens again at the addresses that were refused, until ctx ends.
func (e *httpServers) retry(ctx context.Context) {
	tick := time.NewTicker(httpRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.mu.Lock()
		if len(e.failed) > 0 && !e.paused {
			_ = e.listenLocked(e.want) // what is no error of the kernel was one at the first attempt
		}
		e.mu.Unlock()
	}
}

// problem says which addresses are refused; "" if none is.
func (e *httpServers) problem() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failed) == 0 {
		return ""
	}
	var list []string
	for _, addr := range slices.Sorted(maps.Keys(e.failed)) {
		list = append(list, fmt.Sprintf("%s (%s): %v", addr, strings.Join(slices.Sorted(maps.Keys(e.want[addr])), ", "), e.failed[addr]))
	}
	return "DNS is served, and not served over HTTP: " + strings.Join(list, "; ") + "; end the process that listens there, or choose other addresses"
}

// setInherited sets the listeners of the predecessor, by the address in its configuration. The
// next listen takes those that it needs and closes the others.
func (e *httpServers) setInherited(files map[string]*os.File) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeInherited()
	e.inherited = files
}

// closeInherited closes the inherited listeners. The caller holds e.mu.
func (e *httpServers) closeInherited() {
	for _, f := range e.inherited {
		_ = f.Close()
	}
	e.inherited = nil
}

// takeInherited returns the inherited listener for addr, nil if there is none, or if it listens
// elsewhere. The caller holds e.mu.
func (e *httpServers) takeInherited(addr string) *net.TCPListener {
	f := e.inherited[addr]
	if f == nil {
		return nil
	}
	delete(e.inherited, addr)
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil
	}
	if !listensAt(ln.Addr(), addr) {
		_ = ln.Close()
		return nil
	}
	return ln.(*net.TCPListener)
}

// listensAt reports whether a listener's address is the one that was asked for. Without an IP address, or with 0.0.0.0,
// that is either unspecified address.
func listensAt(addr net.Addr, asked string) bool {
	want, err := net.ResolveTCPAddr("tcp", asked)
	is, ok := addr.(*net.TCPAddr)
	if err != nil || !ok || want.Port != is.Port {
		return false
	}
	if want.IP == nil || want.IP.IsUnspecified() {
		return is.IP.IsUnspecified()
	}
	return want.IP.Equal(is.IP)
}

// listenerFiles returns duplicates of all listeners, by address; the caller closes them.
func (e *httpServers) listenerFiles() (map[string]*os.File, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	files := make(map[string]*os.File)
	for addr, s := range e.servers {
		f, err := s.listenerFile()
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, err
		}
		files[addr] = f
	}
	return files, nil
}

func (s *httpServer) listenerFile() (*os.File, error) {
	if s.suspended != nil {
		return socket.Duplicate(s.suspended)
	}
	return socket.Duplicate(s.ln)
}

// suspend leaves new connections to another process with the same listeners. It does not
// block. Open connections close after their current request.
func (e *httpServers) suspend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = true
	for addr, s := range e.servers {
		f, err := s.listenerFile()
		if s.suspended != nil || err != nil {
			e.log.Error("handing over an HTTP listener failed", "address", addr, "err", err)
			continue
		}
		s.suspended = f
		// Not Shutdown, which drops the requests of connections that were just accepted.
		_ = s.ln.Close()
		s.server.SetKeepAlivesEnabled(false)
	}
}

// resume serves again after suspend.
func (e *httpServers) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = false
	for addr, s := range e.servers {
		if s.suspended == nil {
			continue
		}
		ln, err := net.FileListener(s.suspended)
		if err != nil {
			e.log.Error("resuming an HTTP listener failed", "address", addr, "err", err)
			continue
		}
		_ = s.suspended.Close()
		s.suspended = nil
		s.server.SetKeepAlivesEnabled(true)
		e.serve(s, ln.(*net.TCPListener))
	}
}

// addUsage adds the limits of HTTP endpoints.
func (e *httpServers) addUsage(l *limitList) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for addr, s := range e.servers {
		s.conns.mu.Lock()
		node, others := s.conns.node.Len(), s.conns.others.Len()
		s.conns.mu.Unlock()
		l.add("HTTP connections", addr, others, httpTotalConns)
		l.add("HTTP connections of the node", addr, node, httpNodeConns)
	}
}
