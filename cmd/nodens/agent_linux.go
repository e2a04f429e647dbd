package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodens-dns/nodens/cmd/nodens/app"
)

// logFailure writes the error that ended the agent to w as the agent's log has its lines.
func logFailure(format string, w io.Writer, err error) { app.LogFailure(format, w, err) }

// runAgent runs the agent. SIGUSR1 makes it reload its configuration.
func runAgent(ctx context.Context, f *agentFlags, _, stderr io.Writer) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGUSR1)
	defer signal.Stop(reload)
	f.Reload = reload
	return app.Serve(ctx, f.Agent, stderr)
}
