// Package app is the agent as an application. It reads
// the flags, and is the only place that knows all the parts: it makes them from
// the Corefile, wires them to the server, sets the node's network up around them,
// and takes everything down again.
package app

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)



// Run is the program. It returns the exit code: 0 after a stop that was asked
// for, 1 for everything that is the operator's to mend, 2 for flags that can't be
// read.
func Run(args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	switch command {
	case "flush":
		return runFlush(args, stdout, stderr)
	case "migrate":
		return runMigrate(args, stdout, stderr)
	}
	opts, err := parseFlags(args, stderr)
	switch {
	case err != nil:
		return unread(err, stderr)
	case opts.version:
		fmt.Fprintln(stdout, versionLine())
		return 0
	}
	if err := execute(command, opts, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "nodens:", err)
		return 1
	}
	return 0
}

// unread is the exit code for arguments that can't be read because of err: that of help
// that was asked for is no failure.
func unread(err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "nodens:", err)
	return 2
}

// execute runs one command until it is done or a signal asks it to stop.
func execute(command string, opts *options, stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch command {
	case "":
		return serve(ctx, opts, stderr)
	case "check":
		return check(opts, stdout)
	case "plan":
		return plan(ctx, opts, stdout)
	case "cleanup":
		return cleanup(ctx, opts, stdout)
	case "ready":
		return ready(ctx, opts)
	case "wait":
		fmt.Fprintln(stderr, "nodens: waiting for a signal")
		<-ctx.Done()
		return nil
	case "sample":
		return sample(ctx, opts, stdout, stderr)
	default:
		return fmt.Errorf("unknown command %q; the commands are check, cleanup, flush, migrate, plan, ready, sample and wait, and none to run the agent", command)
	}
}

// version and revision are set by the linker in released binaries.
var version, revision = "dev", ""

// build says what this binary is: its version, the commit it was built from and
// the Go release.
func build() (nodens, commit, goversion string) {
	commit = cmp.Or(revision, "unknown")
	if info, ok := debug.ReadBuildInfo(); ok && revision == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return version, commit, runtime.Version()
}

func versionLine() string {
	v, commit, goversion := build()
	return fmt.Sprintf("nodens-%s %s/%s, %s, %s", v, runtime.GOOS, runtime.GOARCH, goversion, commit)
}
