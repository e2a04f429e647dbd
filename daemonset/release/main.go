// Command release makes what a version of nodens consists of, and checks it. It is a module of
// its own, so that the agent's go.mod has none of its dependencies. It needs no container
// engine, registry or emulation. The first argument is what to do:
//
//	release make -version 0.1.0 -out DIR    everything, from the tag v0.1.0: make release
//	release verify DIR                      checks that directory: make release-verify
//	release push -charts REPOSITORY DIR     checks it, and copies image and chart to registries
//	release image -out FILE                 only the image, from any commit: make image
//	release pack -root DIR -out FILE        an image of a directory, for tests
//	release serve -listen ADDRESS           a registry in memory, for tests
//
// With the same source, Go release and Debian packages, each makes the same bytes, on every path
// and machine.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	commands := map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error{
		"make": runMake, "verify": runVerify, "image": runImage, "pack": runPack, "push": runPush, "serve": runServe,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("give make, verify, push, image or pack as first argument; make -help lists the flags of make")
	}
	return commands[args[0]](ctx, args[1:], stdout, stderr)
}

// source is what a program is compiled from.
type source struct {
	// top is the root directory of the repository.
	top string
	// version and revision are what the agent reports.
	version, revision string
	// now is the time of creation in everything that has one.
	now time.Time
	// tagged says that HEAD is the version's tag, so that the program carries git's version,
	// too.
	tagged bool
}

// linkerValue matches versions and revisions. Both are linker flags, where a space would start
// another flag.
var linkerValue = regexp.MustCompile(`^[\w.+-]*$`)

// agentModule is the agent's module, which this one replaces by the directory above.
const agentModule = "github.com/nodens-dns/nodens"

// complete determines what is left open: the repository's root, its revision and the creation
// time, which is $SOURCE_DATE_EPOCH, or the commit's time, or 1970.
func (s *source) complete(ctx context.Context) error {
	if s.top == "" {
		top, err := firstLine(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", agentModule)
		if err != nil {
			return fmt.Errorf("%w; run it in the directory daemonset/release", err)
		}
		s.top = top
	}
	// Without git, as in a container that builds, neither is known.
	commit, err := firstLine(ctx, s.top, "git", "log", "-1", "--format=%H %ct")
	revision, seconds := "unknown", "0"
	if err == nil {
		revision, seconds, _ = strings.Cut(commit, " ")
		if changed, err := firstLine(ctx, s.top, "git", "status", "--porcelain", "--untracked-files=no"); err == nil && changed != "" {
			revision += "-changed"
		}
	}
	s.revision = cmp.Or(s.revision, revision)
	setting := "the commit's time"
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		setting, seconds = "SOURCE_DATE_EPOCH", epoch
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || at < 0 {
		return fmt.Errorf("%s is %q; give seconds since 1970", setting, seconds)
	}
	s.now = time.Unix(at, 0).UTC()
	return nil
}

// write creates the file, or replaces it, only after all of it is written.
func write(path string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.Rename(part, path)
}

// output runs a program and returns its standard output. A nil env is this process's own
// environment, an empty dir its working directory.
func output(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}

// firstLine returns the first line of output.
func firstLine(ctx context.Context, dir, program string, args ...string) (string, error) {
	text, err := output(ctx, dir, nil, program, args...)
	line, _, _ := strings.Cut(text, "\n")
	return line, err
}
