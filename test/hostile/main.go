// Command hostile sends malformed packets to an agent and checks that well-behaved clients still get
// their answers.
//
// The agent runs every step of the query path: a hosts table, a cluster from files, a cache, and a
// scripted upstream. A seeded mutator (package broken) breaks queries of many shapes, which flooders
// send over UDP. A flooder sends a window of broken packets and then a well-formed query, and checks
// its answer: by then the agent has read the window, and full buffers lose nothing. Every broken
// packet with a complete header that is not a response must get one readable reply within the size
// that it allows; the others must get none. Beside that run idle connections, senders of one byte a
// second, broken frames of all kinds, each followed by a well-formed query over TCP, and queries for
// names whose replies the upstream breaks with the same mutator.
//
// A run has a warm-up and a flood. After each, the command closes what it has opened, and the agent
// must return to its files and goroutines at the start. Its peak memory must be the same in both
// phases but for a few MiB, and it must be the same process without a panic.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p := plan{progress: stderr, warmUp: leastWarmUp}
	fs := flag.NewFlagSet("hostile", flag.ContinueOnError)
	fs.SetOutput(stderr)
	// Ten million are a few minutes; every mutation has met every packet of the
	// corpus some hundred times then.
	fs.IntVar(&p.packets, "packets", 10_000_000, "send `N` broken packets")
	fs.Uint64Var(&p.seed, "seed", 1, "the mutator's seed `N`; the same seed sends the same packets")
	// Five times what the agent takes at once.
	fs.IntVar(&p.idle, "idle", 5000, "hold `N` idle TCP connections")
	fs.IntVar(&p.slow, "slow", 50, "let `N` TCP clients send a byte a second")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if fs.NArg() > 0 || p.packets < 1 || p.idle < 0 || p.slow < 0 {
		return errors.New("no arguments but flags, at least one packet; -help lists the flags")
	}
	dir, err := os.MkdirTemp("", "hostile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p.dir = dir
	r, err := p.run(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, r)
	return r.verdict()
}
