package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

// flushFlags are the flags and the argument of `nodens flush`.
type flushFlags struct {
	socket  adminSocket
	subtree bool
	name    string
}

func newFlushCommand() *cobra.Command {
	f := new(flushFlags)
	cmd := &cobra.Command{
		Use:   "flush NAME",
		Short: "Remove names from the cache of the agent on this node",
		Long: `Remove a name, or with --subtree all names below it as well, from the cache of the agent on this
node. It asks the agent through its admin socket. The name "." with --subtree removes everything.`,
		Example: "  nodens flush www.example.org\n  nodens flush example.org --subtree",
		Args:    cli.OneArg(`one name ("." means all names)`),
	}
	flags := cmd.Flags()
	f.socket.register(flags)
	flags.StringVar(&f.socket.path, "socket", "", "earlier name of --admin-socket")
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
	var removed flushed
	query := url.Values{"name": {f.name}, "subtree": {strconv.FormatBool(f.subtree)}}
	if err := f.socket.ask(ctx, http.MethodPost, "/cache/flush", query, &removed); err != nil {
		return err
	}
	return output.Print(stdout, removed, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%d entries removed\n", removed.Entries)
		return err
	})
}
