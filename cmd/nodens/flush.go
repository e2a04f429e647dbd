package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

const (
	// defaultSocket is the agent's admin socket unless --admin-socket names another.
	defaultSocket = "/run/nodens/admin.sock"
	// flushTimeout bounds the request: a walk over the largest cache takes a second.
	flushTimeout = 10 * time.Second
	// maxReply bounds the agent's reply, in bytes.
	maxReply = 16 << 10
)

// flushFlags are the flags and the argument of `nodens flush`.
type flushFlags struct {
	socket  string
	subtree bool
	name    string
}

func newFlushCommand() *cobra.Command {
	f := new(flushFlags)
	cmd := &cobra.Command{
		Use:   "flush NAME",
		Short: "Remove names from the cache of the agent on this node",
		Long: `Remove a name, or with --subtree all names below it as well, from the cache of the agent that
runs with the same --admin-socket. The name "." with --subtree removes everything.`,
		Example: "  nodens flush www.example.org\n  nodens flush example.org --subtree",
		Args:    cli.OneArg(`one name ("." means all names)`),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.socket, "admin-socket", defaultSocket, "`path` of the agent's admin socket")
	flags.StringVar(&f.socket, "socket", defaultSocket, "earlier name of --admin-socket")
	flags.Lookup("socket").Hidden = true
	flags.BoolVar(&f.subtree, "subtree", false, "all names below NAME as well")
	output := cli.AddOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.name = args[0]
		return runFlush(cmd.Context(), f, output, cmd.OutOrStdout())
	}
	return cmd
}

// flushed is the agent's reply, and the result of the command.
type flushed struct {
	Entries int `json:"entries"`
}

// runFlush asks a running agent to remove a name from its caches, and prints how many
// entries that were.
func runFlush(ctx context.Context, f *flushFlags, output *cli.Output, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	body, err := f.post(ctx)
	if err != nil {
		return err
	}
	var removed flushed
	if err := json.Unmarshal(body, &removed); err != nil {
		return fmt.Errorf("the agent at %s sent no count: %w", f.socket, err)
	}
	return output.Print(stdout, removed, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%d entries removed\n", removed.Entries)
		return err
	})
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
		return nil, fmt.Errorf("asking the agent at %s: %w; is it running with --admin-socket %[1]s? Give the path that the agent has", f.socket, err)
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
