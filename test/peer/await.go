package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// pause is the time between two looks at a condition: short against what is
// waited for, long enough to leave the processor to the one that works on it.
const pause = 20 * time.Millisecond

// limit ends a wait that would never end. It is not a measure of anything:
// what is waited for takes a few seconds at most, on a machine that does
// nothing else.
const limit = 2 * time.Minute

// Probe looks at a condition once. Nil means that it holds; an error says
// what is still missing.
type Probe func(context.Context) error

// Await looks at the condition again and again until it holds. The error, if
// it never does, is the last look's.
func Await(ctx context.Context, what string, probe Probe) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := time.NewTicker(pause)
	defer t.Stop()
	var last error
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), last))
		case <-t.C:
		}
	}
}

// Await is the function Await that gives up when the process ends. The error
// then carries the end of the process's output.
func (p *Process) Await(ctx context.Context, what string, probe Probe) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("%s ended (%v) and wrote:\n%s", p.name, p.err, p.Tail())) //nolint:errorlint // nil for exit code 0
		case <-stop:
		}
	}()
	return Await(ctx, what, probe)
}

// Must is Await that fails the test.
func (p *Process) Must(tb testing.TB, what string, probe Probe) {
	tb.Helper()
	if err := p.Await(tb.Context(), what, probe); err != nil {
		tb.Fatal(err)
	}
}

// Get holds when the URL answers with the given status. A nil client is
// http.DefaultClient.
func Get(client *http.Client, url string, status int) Probe {
	if client == nil {
		client = http.DefaultClient
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			return fmt.Errorf("%s answers %s", url, resp.Status)
		}
		return nil
	}
}

// Answers holds when a DNS server at the address answers a query for the
// root's name servers over UDP, whatever the answer says.
func Answers(server netip.AddrPort) Probe {
	return func(ctx context.Context) error {
		q := new(dns.Msg)
		q.SetQuestion(".", dns.TypeNS)
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.ExchangeContext(ctx, q, server.String())
		return err
	}
}

// The ports that Port picks from lie below the kernel's range for outgoing
// connections (32768 and up), so that none of those takes a picked port
// before its server does, and above the ports with a known use.
const (
	firstPort = 12000
	lastPort  = 32000
)

// Port returns a port of the loopback addresses that is free for UDP and TCP
// at the moment.
func Port() (uint16, error) {
	for range 1000 {
		port := uint16(firstPort + rand.IntN(lastPort-firstPort))
		if free(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// free says whether UDP and TCP can be bound, on every address so that a
// server on the wildcard counts too.
func free(port uint16) bool {
	at := net.JoinHostPort("", fmt.Sprint(port))
	tcp, err := net.Listen("tcp", at)
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", at)
	if err != nil {
		return false
	}
	udp.Close()
	return true
}

// Ports returns n different free ports, or fails the test.
func Ports(tb testing.TB, n int) []uint16 {
	tb.Helper()
	seen := map[uint16]bool{}
	ports := make([]uint16, 0, n)
	for len(ports) < n {
		port, err := Port()
		if err != nil {
			tb.Fatal(err)
		}
		if !seen[port] {
			seen[port] = true
			ports = append(ports, port)
		}
	}
	return ports
}
