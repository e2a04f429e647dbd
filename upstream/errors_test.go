// Inside the package: the tests fill a server's transport by its limits.

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// TestErrLocal: which errors are ErrLocal, and what callers see.
func TestErrLocal(t *testing.T) {
	call := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("connect", errno)}
	}
	tests := []struct {
		name  string
		err   error
		local bool
		known error
	}{
		{"too many in flight", ErrBusy, true, ErrFailed},
		{"max_concurrent", ErrTooMany, true, ErrTooMany},
		{"closed", ErrClosed, true, ErrClosed},
		{"nobody waits any more", context.Canceled, true, ErrFailed},
		{"the time is over", context.DeadlineExceeded, false, ErrTimeout},
		{"no reply", os.ErrDeadlineExceeded, false, ErrTimeout},
		{"no files", call(syscall.EMFILE), true, ErrFailed},
		{"no files anywhere", call(syscall.ENFILE), true, ErrFailed},
		{"no memory", call(syscall.ENOBUFS), true, ErrFailed},
		{"a full socket", syscall.EAGAIN, true, ErrFailed},
		{"no port left", call(syscall.EADDRNOTAVAIL), true, ErrFailed},
		{"a rule of this node", syscall.EPERM, true, ErrFailed},
		{"no route", call(syscall.ENETUNREACH), true, ErrFailed},
		{"no host", call(syscall.EHOSTUNREACH), true, ErrFailed},
		{"an ICMP message", localError{fmt.Errorf("%w, as it says", syscall.ECONNREFUSED)}, true, ErrFailed},
		{"no place on a connection", errNoCapacity, true, ErrFailed},
		{"a connection given up for another", errConnStuck, true, ErrFailed},
		{"a connection refused", call(syscall.ECONNREFUSED), false, ErrFailed},
		{"a connection nobody answers", call(syscall.ETIMEDOUT), false, ErrTimeout},
		{"a connection reset", call(syscall.ECONNRESET), false, ErrFailed},
		{"a connection closed", io.EOF, false, ErrFailed},
		{"a server that does not read", errNotReading, false, ErrFailed},
		{"another's reply", errMismatch, false, ErrFailed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := isLocal(tt.err); got != tt.local {
				t.Errorf("local: %t, want %t", got, tt.local)
			}
			if err := publicError(tt.err); !errors.Is(err, tt.known) {
				t.Errorf("outside it is %v, want %v", err, tt.known)
			}
		})
	}
}

// TestErrBusyIsLocal: with every protocol, a query that exceeds a limit fails with a local
// error, even if another server has failed before.
func TestErrBusyIsLocal(t *testing.T) {
	a := newAuthority(t)
	for name, tt := range map[string]struct {
		over config.Transport
		tls  *tls.Config
		tcp  bool
	}{
		"UDP":   {config.PlainDNS, nil, false},
		"TCP":   {config.PlainDNS, nil, true},
		"TLS":   {config.DNSOverTLS, a.server("dns.test"), false},
		"HTTPS": {config.DNSOverHTTPS, a.server("dns.test"), false},
		"QUIC":  {config.DNSOverQUIC, a.server("dns.test"), false},
	} {
		for _, failed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, failed), func(t *testing.T) {
				f := startFakeTLS(t, tt.tls, answerOK)
				cfg := forwardTo(f)
				cfg.To[0].Transport, cfg.MaxFails = tt.over, 0
				if failed {
					gone := startFake(t, answerOK)
					gone.server.Close()
					cfg.To = append([]config.Target{{Addr: gone.addr}}, cfg.To...)
					cfg.MaxConnectAttempts = 3 // the last server has capacity
				}
				p := newPool(t, cfg)
				for _, s := range p.servers() {
					if s.addr == f.addr {
						fillInFlight(t, s)
					} else {
						s.udp = s.tcp
					}
				}
				_, err := p.Exchange(t.Context(), question(t, "example.org."), tt.tcp)
				if !errors.Is(err, ErrLocal) {
					t.Errorf("without a place: %v, want ErrLocal", err)
				}
			})
		}
	}
}

// fillInFlight uses up the capacity of s.
func fillInFlight(t *testing.T, s *server) {
	t.Helper()
	for _, via := range []transport{s.udp, s.tcp} {
		switch via := via.(type) {
		case *udpTransport:
			via.inFlight = via.maxInFlight
		case *streamTransport:
			via.inFlight = maxConns * maxInFlightPerConn
		case *dohTransport:
			fill(&via.inFlight, maxInFlightDoH)
		case *doqTransport:
			fill(&via.inFlight, maxInFlightDoQ)
		default:
			t.Fatalf("no way to fill up %T", via)
		}
	}
}

// fill makes one client hold n.
func fill(c *share.Counts, n int) {
	for range n {
		c.Add(1)
	}
}

// TestWaitQueueOrder: clients with few queries in flight precede those with many; equal
// ones wait in order of arrival.
func TestWaitQueueOrder(t *testing.T) {
	var w waitQueue
	held := []int{300, 400, 0, 300, 1, 0, 511}
	var places []chan error
	for _, n := range held {
		places = append(places, w.join(n))
	}
	for _, next := range []int{2, 5, 4, 0, 1, 3, 6} {
		w.wake(1, nil)
		if len(places[next]) != 1 {
			t.Fatalf("number %d, of a client with %d in flight, is not the next", next, held[next])
		}
	}
	if !w.empty() || len(w.ranks) != 0 {
		t.Error("somebody is left")
	}
}
