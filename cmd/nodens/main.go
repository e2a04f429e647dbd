// Command nodens is a node-local DNS agent for Kubernetes: one binary on every node,
// which answers pods' queries from a cache and from its own view of the cluster, and
// forwards the rest. Without a command it is the agent; `nodens -help` lists the others.
package main

import (
	"os"

	"github.com/nodens-dns/nodens/cmd/nodens/app"
)

func main() { os.Exit(app.Run(os.Args[1:], os.Stdout, os.Stderr)) }
