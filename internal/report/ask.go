package report

import (
	"context"
	"encoding/json"
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

// Ask sends a request to the admin socket at path and decodes the reply into reply. target is the
// path of the URL, query its parameters. It takes ten seconds at most.
func Ask(ctx context.Context, path, method, target string, query url.Values, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	defer client.CloseIdleConnections()
	u := url.URL{Scheme: "http", Host: "nodens", Path: target, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("%w: %w", ErrNoAgent, dial.Err)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("reading the agent's reply: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("the agent does not know %s; it is of an earlier version", target)
	default:
		return fmt.Errorf("the agent refused: %s", strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, reply); err != nil {
		return fmt.Errorf("the agent's reply is not valid: %w", err)
	}
	return nil
}
