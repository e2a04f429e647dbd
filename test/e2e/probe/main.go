// Command probe asks for names from inside of a pod, in the ways that programs do, and
// writes what it is told as lines for the suite to compare.
//
//	probe every RESOLVER…        questions on standard input, asked of musl, glibc, go or c-ares
//	probe go                     the same, of Go's own resolver
//	probe wire SERVER…           queries on standard input, sent to each server
//	probe until LIMIT NAME WANT  asks the pod's name server until the answer is WANT
//	probe serve PORT…            is the authority of every name, at these ports
//	probe visit ADDR DENIED-ADDR DENIED-NAME NAME…
//	                             visits the names, see package visit, and reports at ADDR
//
// The questions of every and go are those of resolve/resolve.c, and so are the answers. c-ares knows only host.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// run is the command with its arguments.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("say what to do: every, go, wire, until, serve or visit")
	}
	verbs := map[string]struct {
		least, most int
		run         func(args []string) error
	}{
		"every": {1, maxArgs, func(resolvers []string) error { return askAll(ctx, resolvers, in, out) }},
		"go":    {0, 0, func([]string) error { return askGo(ctx, in, out) }},
		"wire":  {1, maxArgs, func(servers []string) error { return queryServers(ctx, servers, in, out) }},
		"until": {3, 3, func(args []string) error { return runUntil(ctx, args, out) }},
		"serve": {1, maxArgs, func(ports []string) error { return serve(ctx, ports) }},
		"visit": {4, maxArgs, func(args []string) error { return runVisit(ctx, args) }},
	}
	v, ok := verbs[args[0]]
	if args = args[1:]; !ok || len(args) < v.least || len(args) > v.most {
		return fmt.Errorf("%q is not how any of it is used", os.Args[1:])
	}
	return v.run(args)
}

// maxArgs is how many servers or ports there may be: all of both families and CoreDNS
// are five.
const maxArgs = 16

// runUntil is until with its arguments as text.
func runUntil(ctx context.Context, args []string, out io.Writer) error {
	limit, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("until, the limit: %w", err)
	}
	return pollUntil(ctx, limit, args[1], args[2], out)
}
