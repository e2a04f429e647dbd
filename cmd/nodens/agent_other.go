//go:build !linux

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// needsLinux returns the error of a command that runs on nodes only.
func needsLinux(what string) error {
	return fmt.Errorf("%s needs Linux; on %s run it in a Linux virtual machine or container. "+
		"check, plan, migrate and cache work here, too", what, runtime.GOOS)
}

func logFailure(_ string, w io.Writer, err error) { fmt.Fprintln(w, "nodens:", err) }

func redirectLibraries() {}

func runAgent(context.Context, *agentFlags, io.Writer, io.Writer) error {
	return needsLinux("the agent")
}

func runCleanup(context.Context, *agentFlags, *cli.Output, io.Writer) error {
	return needsLinux("cleanup")
}

func newDryRun(options.Agent, *config.Config, []string, bool) (dryRun, error) {
	return nil, needsLinux("--ask")
}

func agentReady(context.Context, string) error { return needsLinux("ready") }

func lackedDirectives() []string { return nil }

func checkFiles(b *config.Block, to *config.FileCheck) {
	zonefile.CheckFiles(b, to)
	zonefile.CheckAuto(b, to)
}
