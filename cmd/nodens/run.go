package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// The exit codes.
const (
	exitOK    = 0
	exitError = 1 // the command failed
	exitUsage = 2 // the arguments are invalid
)

// command is one of the program's commands: it reads args and runs until it is done or
// ctx ends.
type command func(ctx context.Context, args []string, stdout, stderr io.Writer) error

// commands lists all commands but the agent itself, which has no name.
var commands = map[string]command{
	"check":   withFlags(runCheck),
	"cleanup": withFlags(runCleanup),
	"flush":   runFlush,
	"migrate": runMigrate,
	"plan":    withFlags(runPlan),
	"ready":   withFlags(runReady),
	"sample":  withFlags(runSample),
	"wait":    withFlags(runWait),
}

// run executes the program with args, without its name, and returns the exit code. It
// returns when the command is done or ctx has ended, which is no error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	execute, args, err := findCommand(args)
	if err == nil {
		err = execute(ctx, args, stdout, stderr)
	}
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "nodens:", err)
		return exitUsage
	default:
		fmt.Fprintln(stderr, "nodens:", err)
		return exitError
	}
}

// findCommand returns the command that args name, and its arguments.
func findCommand(args []string) (command, []string, error) {
	if len(args) == 0 || args[0] == "" || args[0][0] == '-' {
		return withFlags(runAgent), args, nil
	}
	execute, ok := commands[args[0]]
	if !ok {
		names := strings.Join(slices.Sorted(maps.Keys(commands)), ", ")
		return nil, nil, fmt.Errorf("unknown command %q; the commands are %s; without one the agent runs", args[0], names)
	}
	return execute, args[1:], nil
}

// usageError is an error in the arguments.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// withFlags returns a command that takes the agent's flags.
func withFlags(run func(ctx context.Context, f *agentFlags, stdout, stderr io.Writer) error) command {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) error {
		f, err := parseFlags(args, stderr)
		if err != nil {
			return err
		}
		if f.version {
			fmt.Fprintln(stdout, f.Build)
			return nil
		}
		return run(ctx, f, stdout, stderr)
	}
}

// runWait does nothing until ctx ends.
func runWait(ctx context.Context, _ *agentFlags, _, stderr io.Writer) error {
	fmt.Fprintln(stderr, "nodens: waiting for a signal")
	<-ctx.Done()
	return nil
}
