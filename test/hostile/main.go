// Command hostile sends an agent packets that nobody should send, and looks whether
// those who ask properly still get their answers.
//
// It starts the agent with every step of the query path: a hosts table, a cluster out
// of files, a cache, and an upstream that is scripted here. Real queries of many
// shapes are broken by a seeded mutator (mutate.go) and sent over UDP. Each flooder
// sends a window of them and then a well-formed query, whose answer it waits for and
// checks: so what was sent before has been read, and nothing is lost in full buffers.
// Every broken packet with a whole header that is no response must be answered too,
// once, readably, within the size it claims; the others never. Beside that run idle
// connections, senders of a byte a second, broken frames of all kinds, each followed
// by a well-formed query over TCP, and queries for names whose replies the upstream
// breaks with the same mutator.
//
// A run has two phases, a warm-up and the flood. After each, everything that was
// opened is closed, and the agent must come back to the files and goroutines it had
// at the start; the memory it has at its peak must be the same in both, but for a
// few MiB, and it must be the same process without a panic.
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
	p := plan{progress: stderr}
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
