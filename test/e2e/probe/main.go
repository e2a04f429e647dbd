// Command probe asks for names from inside of a pod, in the ways that programs do, and
// writes what it is told as lines for the suite to compare.
//
//	probe every             questions on standard input, asked of musl, glibc and Go
//	probe go                the same, of Go's own resolver
//	probe wire SERVER…      queries on standard input, sent to each server as they are
//	probe until LIMIT NAME WANT  asks the pod's name server until the answer is WANT
//	probe serve PORT…       is the authority of every name, at these ports
//
// The questions of every and go are those of resolve/resolve.c, and so are the answers.
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
		return errors.New("say what to do: every, go, wire, until or serve")
	}
	switch verb, rest := args[0], args[1:]; {
	case verb == "every" && len(rest) == 0:
		return every(ctx, in, out)
	case verb == "go" && len(rest) == 0:
		return resolve(ctx, in, out)
	case verb == "wire" && len(rest) > 0:
		return wire(ctx, rest, in, out)
	case verb == "until" && len(rest) == 3:
		limit, err := time.ParseDuration(rest[0])
		if err != nil {
			return fmt.Errorf("until, the limit: %w", err)
		}
		return until(ctx, limit, rest[1], rest[2], out)
	case verb == "serve" && len(rest) > 0:
		return serve(ctx, rest)
	default:
		return fmt.Errorf("%q is not how any of it is used", args)
	}
}
