package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultSocket is the agent's admin socket unless -socket names another.
	defaultSocket = "/run/nodens/admin.sock"
	// flushTimeout bounds the request: a walk over the largest cache takes a second.
	flushTimeout = 10 * time.Second
	// maxReply bounds the agent's reply, in bytes.
	maxReply = 16 << 10
)

const flushUsage = `  nodens flush [-socket PATH] [-subtree] NAME
                         remove a name, or with -subtree all names below it as well, from
                         the cache of the agent that runs with -admin-socket PATH
`

// flushFlags are the flags and the argument of `nodens flush`.
type flushFlags struct {
	socket  string
	subtree bool
	name    string
}

func parseFlush(args []string, stderr io.Writer) (*flushFlags, error) {
	f := new(flushFlags)
	fs := flag.NewFlagSet("nodens flush", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&f.socket, "socket", defaultSocket, "the agent's -admin-socket `path`")
	fs.BoolVar(&f.subtree, "subtree", false, "all names below NAME as well")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, "nodens flush removes names from the cache of a running agent.\n\n"+flushUsage)
			return nil, err
		}
		return nil, &usageError{fmt.Errorf("%w; nodens flush [-socket PATH] [-subtree] NAME", err)}
	}
	if fs.NArg() != 1 {
		return nil, &usageError{errors.New(`flush takes one name, and -subtree goes before it: nodens flush -subtree example.org; "." means all names`)}
	}
	f.name = fs.Arg(0)
	return f, nil
}

// runFlush asks a running agent to remove a name from its caches, and prints how many
// entries that were.
func runFlush(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f, err := parseFlush(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	body, err := f.post(ctx)
	if err != nil {
		return err
	}
	var removed struct {
		Entries int `json:"entries"`
	}
	if err := json.Unmarshal(body, &removed); err != nil {
		return fmt.Errorf("the agent at %s sent no count: %w", f.socket, err)
	}
	_, err = fmt.Fprintf(stdout, "%d entries removed\n", removed.Entries)
	return err
}

// post sends the request and returns the body of the agent's reply.
func (f *flushFlags) post(ctx context.Context) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", f.socket)
		},
	}}
	defer client.CloseIdleConnections()
	target := "http://nodens/cache/flush?" + url.Values{"name": {f.name}, "subtree": {strconv.FormatBool(f.subtree)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the agent at %s: %w; is it running with -admin-socket %[1]s? -socket names another", f.socket, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("reading the agent's reply: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent refused: %s", strings.TrimSpace(string(body)))
	}
	return body, nil
}
