package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// timeout bounds a request: a walk over the largest cache takes a second.
	timeout = 10 * time.Second
	// maxReply bounds a reply, in bytes.
	maxReply = 4 << 20
)

// ErrNoAgent is the error of [Ask] if no agent listens at the socket.
var ErrNoAgent = errors.New("no agent answers")

// ErrHangs is the error of [Ask] and [Follow] if an agent listens and does not reply.
var ErrHangs = errors.New("the agent hangs")

// ErrEnded is the error of [Follow] if the agent ends the reply.
var ErrEnded = errors.New("the agent has ended, or has handed over to another one")

// Ask sends a request to the admin socket at path and decodes the reply into reply. target is the
// path of the URL, query its parameters. It takes ten seconds at most.
func Ask(ctx context.Context, path, method, target string, query url.Values, reply any) error {
	return ask(ctx, path, method, target, query, nil, reply)
}

// Post is [Ask] with POST and a body.
func Post(ctx context.Context, path, target string, body []byte, reply any) error {
	return ask(ctx, path, http.MethodPost, target, nil, body, reply)
}

func ask(ctx context.Context, path, method, target string, query url.Values, sent []byte, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	resp, err := send(ctx, path, method, target, query, sent)
	if err != nil {
		return hang(ctx, began, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err = hang(ctx, began, err); err != nil {
		return fmt.Errorf("reading the agent's reply: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return refusal(resp.StatusCode, target, body)
	}
	if err := Unmarshal(body, reply); err != nil {
		return fmt.Errorf("the agent's reply is not valid: %w", err)
	}
	return nil
}

// hang returns an error that wraps [ErrHangs] in place of err if the time of a request that began then is over.
func hang(ctx context.Context, began time.Time, err error) error {
	var timeout net.Error
	if err != nil && (errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()) {
		return fmt.Errorf("%w: no reply for %v", ErrHangs, time.Since(began).Round(time.Millisecond))
	}
	return err
}

// send sends a request to the socket at path. The caller closes the body of the response.
func send(ctx context.Context, path, method, target string, query url.Values, body []byte) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "nodens", Path: target, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Transport{
		DisableKeepAlives: true, ResponseHeaderTimeout: timeout,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}).RoundTrip(req)
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, dial.Err)
	}
	return resp, err
}

// refusal returns the error of a reply with another status than 200.
func refusal(status int, target string, body []byte) error {
	if status == http.StatusNotFound {
		return fmt.Errorf("the agent does not know %s; it is of an earlier version", target)
	}
	return fmt.Errorf("the agent refused: %s", Printable(strings.TrimSpace(string(body))))
}
