package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

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
