// Inside the package: the test makes errors of queries to one server.

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
)

// TestNetText: errors in the words of package net, as CoreDNS 1.15 logs them.
func TestNetText(t *testing.T) {
	local := netip.MustParseAddrPort("192.0.2.9:4711")
	dialed := func(err error) error {
		return fmt.Errorf("connecting: %w", &net.OpError{Op: "dial", Net: "tcp", Source: &net.TCPAddr{}, Err: err})
	}
	for _, tt := range []struct {
		name   string
		tcp    bool
		local  netip.AddrPort
		server string
		cause  error
		want   string
	}{
		{"UDP timeout", false, local, "192.0.2.1:53", os.ErrDeadlineExceeded, "read udp 192.0.2.9:4711->192.0.2.1:53: i/o timeout"},
		{"no time left", false, netip.AddrPort{}, "192.0.2.1:53", context.DeadlineExceeded, "read udp 0.0.0.0:0->192.0.2.1:53: i/o timeout"},
		{"IPv6", false, netip.AddrPort{}, "[2001:db8::1]:53", os.ErrDeadlineExceeded, "read udp [::]:0->[2001:db8::1]:53: i/o timeout"},
		{"UDP refused", false, local, "192.0.2.1:53", localError{fmt.Errorf("%w, as it says", syscall.ECONNREFUSED)}, "read udp 192.0.2.9:4711->192.0.2.1:53: read: connection refused"},
		{"UDP, then TCP refused", false, local, "192.0.2.1:53", dialed(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "read udp 192.0.2.9:4711->192.0.2.1:53: read: connection refused"},
		{"TCP timeout", true, local, "192.0.2.1:53", os.ErrDeadlineExceeded, "read tcp 192.0.2.9:4711->192.0.2.1:53: i/o timeout"},
		{"TCP refused", true, netip.AddrPort{}, "192.0.2.1:53", dialed(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "dial tcp 192.0.2.1:53: connect: connection refused"},
		{"TCP connect timeout", true, netip.AddrPort{}, "192.0.2.1:53", dialed(os.ErrDeadlineExceeded), "dial tcp 192.0.2.1:53: i/o timeout"},
		{"closed", true, local, "192.0.2.1:53", io.EOF, "EOF"},
		{"none healthy", true, local, "192.0.2.1:53", nil, "no healthy proxies"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := &query{exchange: &exchange{tcp: tt.tcp}, attempt: attempt{server: &server{addr: netip.MustParseAddrPort(tt.server), label: tt.server}}}
			err := error(localError{ErrNoUpstream})
			if tt.cause != nil {
				err = fmt.Errorf("wrapped: %w", newQueryError(q, tt.local, publicError(tt.cause), tt.cause))
				if !errors.Is(err, publicError(tt.cause)) && !errors.Is(err, ErrFailed) {
					t.Errorf("%v hides its cause", err)
				}
			}
			if got := NetText(err); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if got := NetText(errors.New("other")); got != "" {
		t.Errorf("of another error: %q", got)
	}
}
