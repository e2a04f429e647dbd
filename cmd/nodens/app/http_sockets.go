package app

import (
	"net"
	"os"

	"github.com/nodens-dns/nodens/server"
)

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
		return server.Duplicate(s.suspended)
	}
	return server.Duplicate(s.ln)
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
