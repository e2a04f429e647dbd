// Command nodens is a node-local DNS agent for Kubernetes: one process on each node, which
// answers the pods' queries from a cache and from its own view of the cluster, and
// forwards all others.
//
// This package is the command line only: flags, help and the commands. Package app is the
// agent. Without a command the program runs the agent; `nodens --help` lists the commands.
// The flags have the names of NodeLocal DNSCache's flags and take one dash or two. Under the name
// kubectl-nodens it is a plugin of kubectl, with commands for a whole cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	redirectLibraries()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	root := newRootCommand()
	if isPlugin(os.Args[0]) {
		root = newPluginCommand()
	}
	code := execute(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
