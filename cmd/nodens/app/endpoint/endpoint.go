// Package endpoint serves health, readiness, metrics and profiles over HTTP. It knows nothing of the agent.
//
// [Servers] are the servers, whose listeners another agent can take over. Each address has a bounded number of connections, of
// which the node itself has some that nobody else can take, and each client a rate of requests. [Exposition] keeps scrapes from
// making the text of the metrics too often.
package endpoint

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/nodens-dns/nodens/internal/connlimit"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/tentative"
)

// Servers are the HTTP servers of health, readiness and metrics. Several
// directives may name one address; their paths then share its server. [New] makes them. They are safe
// for concurrent use.
type Servers struct {
	opts   Options
	counts httpCounts

	mu        sync.Mutex
	servers   map[string]*httpServer
	inherited map[string]*os.File // of SetInherited, until Listen takes or closes them
	want      Handlers            // of the last Listen
	failed    map[string]error    // addresses of want that the kernel refuses; Retry tries them again
	toldAt    time.Time           // when failed was logged
	paused    bool                // between Suspend and Resume
	failures  atomic.Uint64       // see Failures
}

// Options are the settings of Servers.
type Options struct {
	Log *slog.Logger
	// Errors gets what the servers log.
	Errors *log.Logger
	// ReusePort: share addresses with another agent, beside which this one starts if a
	// handover is not possible.
	ReusePort bool
	// Local reports whether an address is the node's own, whose connections have places of their own; nil: none is.
	Local func(netip.Addr) bool
}

// New returns servers that don't listen yet.
func New(o Options) *Servers { return &Servers{opts: o, servers: make(map[string]*httpServer)} }

// Handlers are handlers by address and path.
type Handlers = map[string]map[string]http.Handler

// httpServer is one HTTP address. Its handler can be swapped while it serves.
type httpServer struct {
	ln        *net.TCPListener
	server    *http.Server
	conns     *httpConns
	handler   atomic.Pointer[http.ServeMux]
	suspended *os.File // the listener between Suspend and Resume, else nil
}

// Timeout bounds a request. Probes and scrapes take milliseconds.
const Timeout = 10 * time.Second

// MaxHeader bounds a request's header, in bytes.
const MaxHeader = 16 << 10

// listenTCP listens at addr.
func (e *Servers) listenTCP(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !e.opts.ReusePort {
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

func (e *Servers) newServer() *httpServer {
	s := &httpServer{conns: newHTTPConns(e.opts.Local, &e.counts)}
	s.server = e.serverOf(s.conns, func(w http.ResponseWriter, r *http.Request) { s.handler.Load().ServeHTTP(w, r) })
	s.server.IdleTimeout = 2 * time.Minute // longer than a scrape interval, so that its connection is reused
	return s
}

// serverOf returns a server for connections that are among conns.
func (e *Servers) serverOf(conns *httpConns, h http.HandlerFunc) *http.Server {
	return &http.Server{
		Handler:           conns.handler(h),
		ConnContext:       connContext,
		ReadTimeout:       Timeout,
		ReadHeaderTimeout: Timeout,
		WriteTimeout:      Timeout,
		IdleTimeout:       Timeout,
		MaxHeaderBytes:    MaxHeader,
		ErrorLog:          e.opts.Errors,
	}
}

// NewServer returns a server that is none of e, with h for all paths and at most limit connections, and what accepts its connections
// from a listener. They are counted with those of e.
func (e *Servers) NewServer(limit int, h http.HandlerFunc) (*http.Server, func(*net.TCPListener) net.Listener) {
	conns := &httpConns{counts: &e.counts, others: connlimit.Set[*httpConn]{Total: limit, PerClient: limit, Fair: true}}
	return e.serverOf(conns, h), conns.listener
}

// serve makes s serve the connections of ln, until either is closed.
func (e *Servers) serve(s *httpServer, ln *net.TCPListener) {
	s.ln = ln
	go func() {
		if err := s.server.Serve(s.conns.listener(ln)); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			e.opts.Log.Error("HTTP server stopped", "address", ln.Addr(), "err", err)
		}
	}()
}

// Close closes all servers. Another process with the same listeners is not affected.
func (e *Servers) Close() {
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

// httpRetry is the time between two attempts to listen at an address that was refused.
const httpRetry = 5 * time.Second

// Listen serves exactly the given handlers. It binds new addresses first: on an error nothing has changed, except
// that unused inherited listeners are closed. An address that the kernel refuses, such as a port in use, is no error,
// because DNS is served without it: it is logged and counted, and [Servers.Retry] tries again.
func (e *Servers) Listen(want Handlers) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listenLocked(want)
}

// listenLocked is [Servers.Listen] for callers that hold e.mu.
func (e *Servers) listenLocked(want Handlers) error {
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
func (e *Servers) bind(want Handlers) (fresh map[string]*net.TCPListener, failed map[string]error, err error) {
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
func (e *Servers) setFailed(failed map[string]error) {
	e.failures.Add(uint64(len(failed)))
	told := time.Since(e.toldAt) < time.Minute
	for addr, err := range failed {
		if told && e.failed[addr] != nil {
			continue
		}
		e.toldAt = time.Now()
		e.opts.Log.Error("health, ready, metrics or pprof are not served at an address; trying again", "address", addr, "paths", slices.Sorted(maps.Keys(e.want[addr])), "err", err)
	}
	for addr := range e.failed {
		if failed[addr] == nil && e.servers[addr] != nil {
			e.opts.Log.Info("an address of health, ready, metrics or pprof is served again", "address", addr)
		}
	}
	e.failed = failed
}

// Retry listens again at the addresses that were refused, until ctx ends.
func (e *Servers) Retry(ctx context.Context) {
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

// Problem says which addresses are refused; "" if none is.
func (e *Servers) Problem() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failed) == 0 {
		return ""
	}
	var list []string
	for _, addr := range slices.Sorted(maps.Keys(e.failed)) {
		list = append(list, fmt.Sprintf("%s (%s): %v", addr, strings.Join(slices.Sorted(maps.Keys(e.want[addr])), ", "), e.failed[addr]))
	}
	return "DNS is served, and not served over HTTP: " + strings.Join(list, "; ")
}

// SetInherited sets the listeners of the predecessor, by the address in its configuration. The
// next Listen takes those that it needs and closes the others.
func (e *Servers) SetInherited(files map[string]*os.File) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeInherited()
	e.inherited = files
}

// closeInherited closes the inherited listeners. The caller holds e.mu.
func (e *Servers) closeInherited() {
	for _, f := range e.inherited {
		_ = f.Close()
	}
	e.inherited = nil
}

// takeInherited returns the inherited listener for addr, nil if there is none, or if it listens
// elsewhere. The caller holds e.mu.
func (e *Servers) takeInherited(addr string) *net.TCPListener {
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

// ListenerFiles returns duplicates of all listeners, by address; the caller closes them.
func (e *Servers) ListenerFiles() (map[string]*os.File, error) {
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

// Suspend leaves new connections to another process with the same listeners. It does not
// block. Open connections close after their current request.
func (e *Servers) Suspend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = true
	for addr, s := range e.servers {
		f, err := s.listenerFile()
		if s.suspended != nil || err != nil {
			e.opts.Log.Error("handing over an HTTP listener failed", "address", addr, "err", err)
			continue
		}
		s.suspended = f
		// Not Shutdown, which drops the requests of connections that were just accepted.
		_ = s.ln.Close()
		s.server.SetKeepAlivesEnabled(false)
	}
}

// Resume serves again after Suspend.
func (e *Servers) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = false
	for addr, s := range e.servers {
		if s.suspended == nil {
			continue
		}
		ln, err := net.FileListener(s.suspended)
		if err != nil {
			e.opts.Log.Error("resuming an HTTP listener failed", "address", addr, "err", err)
			continue
		}
		_ = s.suspended.Close()
		s.suspended = nil
		s.server.SetKeepAlivesEnabled(true)
		e.serve(s, ln.(*net.TCPListener))
	}
}

// EachUsage calls f twice for each address: with the open connections from other hosts, and with the connections from the node itself.
func (e *Servers) EachUsage(f func(name, addr string, used, bound int)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for addr, s := range e.servers {
		s.conns.mu.Lock()
		node, others := s.conns.node.Len(), s.conns.others.Len()
		s.conns.mu.Unlock()
		f("HTTP connections", addr, others, httpTotalConns)
		f("HTTP connections of the node", addr, node, httpNodeConns)
	}
}
