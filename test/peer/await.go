package peer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// pause is the time between two checks of a condition.
const pause = 20 * time.Millisecond

// limit is the maximum time of a wait. It only ends waits that would never end: conditions
// hold within seconds, unless the machine is busy.
const limit = 5 * time.Minute

// Probe checks a condition once. It returns nil if the condition holds, else an error that
// says what is missing.
type Probe func(context.Context) error

// Await calls probe until it returns nil. If ctx ends first, or after five minutes, the error
// contains what, which describes the condition, and the last error of probe.
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
		if ctx.Err() == nil || last == nil { // else the end of ctx may be why
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), last))
		case <-t.C:
		}
	}
}

// Await is the function [Await]; it also returns when the process ends. The error then
// contains the end of the process's output.
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

// Must is Await, and fails the test on an error.
func (p *Process) Must(tb testing.TB, what string, probe Probe) {
	tb.Helper()
	if err := p.Await(tb.Context(), what, probe); err != nil {
		tb.Fatal(err)
	}
}

// Get is the condition that a GET request of the URL returns the given status. A nil client
// means http.DefaultClient.
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
			return fmt.Errorf("GET %s returns %s, want %d", url, resp.Status, status)
		}
		return nil
	}
}

// Answers is the condition that a DNS server replies to a query for the root's name servers
// over UDP. Any reply counts.
func Answers(server netip.AddrPort) Probe {
	return func(ctx context.Context) error {
		q := new(dns.Msg)
		q.SetQuestion(".", dns.TypeNS)
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.ExchangeContext(ctx, q, server.String())
		return err
	}
}
