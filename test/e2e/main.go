// Command e2e installs nodens in a real cluster the way its users do, asks what they
// would ask, breaks what breaks, and prints a table of what was checked. `make e2e` runs
// it; it needs root, on Debian, and leaves nothing behind.
//
//	go run ./test/e2e [-only PART,…] [-network NAME,…] [-proxy MODE,…] [-release RELEASE,…] [-keep] [-retry]
//	                    [-dir DIR] [-outage TIME] [-bad AGENT,…] [-out FILE] [-network-out FILE] [-incident-out FILE]
//
// Each part of the table is a file of its own; they run in the order of parts.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// defaultOutage is long enough for the agents' watches to have given up several times, at
// intervals that grow to half a minute; longer ones are for who wants to see them.
const defaultOutage = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == cluster.PauseArg {
		return cluster.Pause(os.Stdin, os.Stdout, os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == cluster.PoliciesArg {
		return cluster.EnforcePolicies(ctx, os.Args[2:])
	}
	var s suite
	only := flag.String("only", "", "the parts to run, separated by commas; all if it is empty")
	network := flag.String("network", "", "the pod networks, separated by commas, or all; if it is empty, "+
		"ptp for the part network and bridge for the others")
	proxy := flag.String("proxy", "", "the modes of kube-proxy, separated by commas; if it is empty, each part has its usual one")
	release := flag.String("release", "", "the minor releases of Kubernetes, such as v1.36, separated by commas, or all; the newest if it is empty")
	flag.BoolVar(&s.keep, "keep", false, "leave the cluster up until the program is interrupted")
	flag.BoolVar(&s.retry, "retry", false, "run parts with failed checks once more; a check that passes then has passed")
	flag.StringVar(&s.dir, "dir", "", "where files and logs go; a temporary folder if it is empty")
	flag.StringVar(&s.out, "out", "", "a file to write the table to, in Markdown")
	flag.StringVar(&s.networkOut, "network-out", "", "a file in Markdown whose table of networks to write")
	flag.StringVar(&s.incidentOut, "incident-out", "", "a file in Markdown whose outputs of commands the part incident writes")
	flag.DurationVar(&s.outage, "outage", defaultOutage, "how long the API server is away in the part chaos")
	bad := flag.String("bad", usualBadAgents, "the bad agents of the part rollback, separated by commas")
	flag.Parse()
	planned, err := plan(selection{splitList(*only), splitList(*network), splitList(*proxy), splitList(*release)})
	if err != nil {
		return err
	}
	if s.bad, err = chooseBadAgents(splitList(*bad)); err != nil {
		return err
	}
	return s.run(ctx, planned)
}

// splitList returns the words between commas.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
