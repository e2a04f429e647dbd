package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

const (
	// exportTimeout bounds a request with its reply, as in OpenTelemetry's exporters.
	exportTimeout = 10 * time.Second
	// dialTimeout bounds a connection with the look-up of the name.
	dialTimeout = 4 * time.Second
	// idleTimeout is how long an unused connection stays open.
	idleTimeout = 90 * time.Second
	// maxReply bounds what is read of a reply, and maxReplyHeader its header.
	maxReply       = 64 << 10
	maxReplyHeader = 16 << 10
	// maxReason bounds the text of a reply in the log.
	maxReason = 200
)

// failure is why a batch was not taken.
type failure struct {
	err error
	// again says that the collector may take it later, but not before after has passed.
	again bool
	after time.Duration
}

// reason returns the reason for which the batch is dropped if it is not sent again.
func (f *failure) reason() int {
	if f.again {
		return notTaken
	}
	return refused
}

// newClient returns a client with one connection, without proxies, redirects and compression.
func newClient(lookup func(context.Context, string) ([]netip.Addr, error)) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dial(ctx, lookup, network, address)
			},
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialTimeout,
			MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout,
			DisableCompression: true, MaxResponseHeaderBytes: maxReplyHeader,
		},
	}
}

// dial connects to address, HOST:PORT. It tries the addresses of a name one after the other.
func dial(ctx context.Context, lookup func(context.Context, string) ([]netip.Addr, error), network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	host, port, err := net.SplitHostPort(address)
	if err != nil || lookup == nil || net.ParseIP(host) != nil {
		return d.DialContext(ctx, network, address)
	}
	addrs, err := lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, a := range addrs {
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	if len(failed) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return nil, errors.Join(failed...)
}

// post sends a batch with this number of spans, and returns how many of them the collector has taken.
func (e *Exporter) post(ctx context.Context, body []byte, spans int) (taken int, _ *failure) {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.opts.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, &failure{err: err}
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "nodens")
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, &failure{err: err, again: true}
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1)) // also of an error, so that the connection can be used again
	if resp.StatusCode/100 != 2 {
		return 0, statusFailure(resp)
	}
	if err != nil || len(reply) > maxReply { // it has taken the batch, whatever else it says
		return spans, nil
	}
	n, why := rejected(reply)
	if n > 0 {
		e.dropped[refused].Add(uint64(n))
		e.opts.Logger.Debug("the collector has rejected spans", "endpoint", e.opts.Endpoint, "spans", n, "reason", cut(why))
	}
	return spans - int(min(n, int64(spans))), nil
}

// statusFailure returns why a reply with a status other than success has failed. Only the statuses of OTLP's
// specification permit another attempt.
func statusFailure(resp *http.Response) *failure {
	f := &failure{err: fmt.Errorf("the collector answered %s", cut(resp.Status))}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		f.again, f.after = true, retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	return f
}

// retryAfter returns the time of a Retry-After header (RFC 9110, 10.2.3), 0 for none.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// jitter returns a random time from half of d to d, so that the agents of a cluster don't retry together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1) //nolint:gosec // needs no secret
}

// cut returns the beginning of a text from the collector.
func cut(text string) string { return text[:min(len(text), maxReason)] }
