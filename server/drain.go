package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// drain is the state of one [Server.Suspend], until the [Server.Resume] that ends it.
type drain struct {
	mu sync.Mutex
	// transfer passes a connection on. It is nil once it has failed or Suspend has
	// returned.
	transfer func(at netip.AddrPort, conn *net.TCPConn, read []byte) error
}

// transferConn passes c on, one connection at a time. It returns false if c stays here.
func (d *drain) transferConn(c *tcpConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.transfer == nil {
		return false
	}
	if err := d.transfer(c.l.addr.AddrPort, c.conn, c.readBuf[:c.buffered]); err != nil {
		d.transfer = nil
		return false
	}
	return true
}

// stop ends the passing on of connections.
func (d *drain) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.transfer = nil
}

// errSuspended is returned by methods that are not allowed between Suspend and Resume.
var errSuspended = errors.New("the server is suspended: its sockets are handed over to another process")

// drainPollInterval is how often Suspend checks whether everything has ended. It happens
// once in the life of an agent.
const drainPollInterval = time.Millisecond

// drainGrace is how long connections with pending queries are still read from if they do
// not become idle by themselves. Nearly all queries take less.
const drainGrace = time.Second

// Suspend stops reading and accepting while another process reads from the same sockets,
// which stay open here. It then drains the connections:
//
//   - Connections over plain TCP are passed to transfer when they become idle, one at a
//     time and together with the part of a message that has been read. transfer must not
//     keep conn, but may duplicate its descriptor. After an error of transfer the
//     remaining connections are served here.
//   - Connections over TLS, HTTPS and QUIC end as they do in [Server.Shutdown]. Queries in flight are
//     answered first.
//
// Suspend returns nil when there is no connection and no pending query left, or ctx's
// error when ctx ends. In both cases reading has stopped and transfer is not called any
// more; what is left is served until Shutdown.
func (s *Server) Suspend(ctx context.Context, transfer func(at netip.AddrPort, conn *net.TCPConn, read []byte) error) error {
	d := &drain{transfer: transfer}
	leaving, err := s.stopReaders(d)
	if err != nil {
		return err
	}
	defer d.stop()
	tick := time.NewTicker(drainPollInterval)
	defer tick.Stop()
	// Readers and acceptors end within [recvTimeout], so this wait ignores ctx. Resume
	// relies on their having ended.
	for !all(leaving, (*listener).stopped) {
		<-tick.C
	}
	for _, l := range leaving {
		l.drain()
	}
	return s.waitDrained(ctx, leaving, tick.C)
}

// waitDrained blocks until no query is pending and no connection is left, or ctx ends. It
// checks at each tick.
func (s *Server) waitDrained(ctx context.Context, leaving []*listener, tick <-chan time.Time) error {
	late := time.NewTimer(drainGrace)
	defer late.Stop()
	for !s.waiting.Idle() || !all(leaving, (*listener).hasNoConns) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			for _, l := range leaving {
				if l.isPlainDNS() {
					l.tcp.transferConns(true)
				}
			}
		case <-tick:
		}
	}
	return nil
}

// stopReaders tells all readers and acceptors to end and returns their listeners.
func (s *Server) stopReaders(d *drain) ([]*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.CompareAndSwap(nil, d) {
		return nil, errSuspended
	}
	s.disableFastPath()
	var leaving []*listener
	for _, l := range s.listeners {
		leaving = append(leaving, l)
		for _, p := range l.udp {
			p.suspend()
		}
		if l.tcp != nil {
			_ = l.tcp.SetDeadline(past)
		}
	}
	return leaving, nil
}

// Resume undoes [Server.Suspend], which must have returned: the server reads and accepts
// again. Connections that were passed on are gone.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Swap(nil) == nil {
		return
	}
	for _, l := range s.listeners {
		if l.quic != nil {
			close(l.quic.hurry)
			l.quic.shutdown()
			l.quic = newQUICListener(l, l.quic.socket)
			l.start()
			continue
		}
		if l.https != nil {
			l.https = newHTTPSServer(l) // an http.Server cannot be restarted
		}
		_ = l.tcp.SetDeadline(time.Time{})
		for _, p := range l.udp {
			p.resume()
		}
		balance(l.udp)
		l.start()
	}
	s.enableFastPath()
}

func all(listeners []*listener, holds func(*listener) bool) bool {
	for _, l := range listeners {
		if !holds(l) {
			return false
		}
	}
	return true
}
