package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodens-dns/nodens/cmd/nodens/app"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/handover"
)

// logFailure writes the error that ended the agent to w as the agent's log has its lines.
func logFailure(format string, w io.Writer, err error) { app.LogFailure(format, w, err) }

// runAgent runs the agent. SIGUSR1 and SIGHUP make it reload its configuration.
func runAgent(ctx context.Context, f *agentFlags, _, stderr io.Writer) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGUSR1, syscall.SIGHUP)
	defer signal.Stop(reload)
	// Without this, a write to standard error whose reader has gone ends the process. It stays until the process ends,
	// because the goroutine that writes the log may outlive Serve.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	f.Reload = reload
	return app.Serve(ctx, f.Agent, stderr)
}

// redirectLibraries makes client-go log as the agent does.
func redirectLibraries() { app.RedirectKlog() }

// agentReady returns nil if the agent that uses dir can take queries and keeps the node.
func agentReady(ctx context.Context, dir string) error { return handover.Ready(ctx, dir) }

func newDryRun(opts options.Agent, cfg *config.Config, manifests []string, offNode bool) (dryRun, error) {
	return app.NewDryRun(opts, cfg, manifests, offNode)
}

// lackedDirectives returns the directives that this build refuses.
func lackedDirectives() []string { return app.Lacks() }

// checkFiles reads the files that b's directives read when the agent starts.
func checkFiles(b *config.Block, to *config.FileCheck) { app.CheckFiles(b, to) }
