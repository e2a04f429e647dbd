package app

import (
	"net"
	"os"

	"github.com/nodens-dns/nodens/server"
)

// adopt gives listeners of another agent, by the address that the configuration calls
// them by. The next listen takes those it wants and closes the rest.
func (e *endpoints) adopt(files map[string]*os.File) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disown()
	e.legacy = files
}

// disown closes what was given to adopt and not taken. The caller holds e.mu.
func (e *endpoints) disown() {
	for _, f := range e.legacy {
		_ = f.Close()
	}
	e.legacy = nil
}

// inherit gives the listener that was handed down for addr; nil if there is none that is
// what it is said to be. The caller holds e.mu.
func (e *endpoints) inherit(addr string) *net.TCPListener {
	f := e.legacy[addr]
	if f == nil {
		return nil
	}
	delete(e.legacy, addr)
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil
	}
	want, err := net.ResolveTCPAddr("tcp", addr)
	is, ok := ln.Addr().(*net.TCPAddr)
	// Without an IP address it is one of the two that stand for all.
	if err != nil || !ok || want.Port != is.Port || want.IP == nil && !is.IP.IsUnspecified() || want.IP != nil && !want.IP.Equal(is.IP) {
		_ = ln.Close()
		return nil
	}
	return ln.(*net.TCPListener)
}

// handles gives duplicates of all listeners, by address; the caller closes them.
func (e *endpoints) handles() (map[string]*os.File, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	files := make(map[string]*os.File)
	for addr, s := range e.servers {
		f, err := s.file()
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

func (s *endpoint) file() (*os.File, error) {
	if s.parked != nil {
		return server.Duplicate(s.parked)
	}
	return server.Duplicate(s.ln)
}

// yield leaves new connections to another process that has the same listeners, and
// returns at once. Connections close as soon as nothing is under way on them; a request
// has the time it always has, but for the end of this process.
func (e *endpoints) yield() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for addr, s := range e.servers {
		f, err := s.file()
		if s.parked != nil || err != nil {
			e.log.Error("an HTTP endpoint is not handed over", "address", addr, "err", err)
			continue
		}
		s.parked = f
		// Not Shutdown, which drops the requests of connections that were just accepted.
		_ = s.ln.Close()
		s.server.SetKeepAlivesEnabled(false)
	}
}

// resume goes back to serving what yield left to others.
func (e *endpoints) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for addr, s := range e.servers {
		if s.parked == nil {
			continue
		}
		ln, err := net.FileListener(s.parked)
		if err != nil {
			e.log.Error("an HTTP endpoint is not served again", "address", addr, "err", err)
			continue
		}
		_ = s.parked.Close()
		s.parked = nil
		s.server.SetKeepAlivesEnabled(true)
		e.serve(s, ln.(*net.TCPListener))
	}
}
