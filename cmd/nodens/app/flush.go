package app

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

// defaultSocket is where `nodens flush` looks for the agent.
const defaultSocket = "/run/nodens/admin.sock"

// patienceOfFlush is how long `nodens flush` waits: a walk over the largest cache
// takes a second.
const patienceOfFlush = 10 * time.Second

const flushUsage = `  nodens flush [-socket PATH] [-subtree] NAME
                         remove a name, or with -subtree all names below it too, from
                         the cache of the agent that runs with -admin-socket PATH
`

// flushFlags are those of `nodens flush`.
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
	fs.BoolVar(&f.subtree, "subtree", false, "all names below NAME, too")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, "nodens removes names from the cache of a running agent.\n\n"+flushUsage)
			return nil, err
		}
		return nil, fmt.Errorf("%w; nodens flush [-socket PATH] [-subtree] NAME", err)
	}
	if fs.NArg() != 1 {
		return nil, fmt.Errorf(`flush takes one name, and -subtree goes before it: nodens flush -subtree example.org; "." is all`)
	}
	f.name = fs.Arg(0)
	return f, nil
}

// flush asks the agent to forget a name, and says how many entries it had of it.
func flush(ctx context.Context, f *flushFlags, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfFlush)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", f.socket)
		},
	}}
	defer client.CloseIdleConnections()
	to := "http://nodens/cache/flush?" + url.Values{"name": {f.name}, "subtree": {strconv.FormatBool(f.subtree)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the agent at %s: %w; is it running with -admin-socket %[1]s? -socket names another", f.socket, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxHeader))
	if err != nil {
		return fmt.Errorf("reading the agent's reply: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the agent refused: %s", strings.TrimSpace(string(body)))
	}
	var n flushed
	if err := json.Unmarshal(body, &n); err != nil {
		return fmt.Errorf("the agent at %s sent no count: %w", f.socket, err)
	}
	_, err = fmt.Fprintf(stdout, "%d entries removed\n", n.Entries)
	return err
}

// runFlush is `nodens flush`, with its exit codes: those of [run].
func runFlush(args []string, stdout, stderr io.Writer) int {
	f, err := parseFlush(args, stderr)
	if err != nil {
		return unread(err, stderr)
	}
	if err := flush(context.Background(), f, stdout); err != nil {
		fmt.Fprintln(stderr, "nodens:", err)
		return 1
	}
	return 0
}
