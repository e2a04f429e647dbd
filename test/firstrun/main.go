// Command firstrun measures the first minutes of a newcomer: it clones the repository into a
// new directory, runs `make run` there with an empty home directory, and measures the time to
// the first answer. Then it stops the agent and starts it once more, which is the warm start.
// It runs each dig line that `make run` prints, and fails if one has no answer, or if a run
// leaves files in its temporary directory.
//
//	go run ./test/firstrun
//	GOPROXY=file://$(go env GOMODCACHE)/cache/download go run ./test/firstrun -rounds 1
//
// The second line downloads no modules: they come from this machine's own module cache. Uncommitted
// changes are not in the clone.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	rounds := flag.Int("rounds", 3, "`number` of fresh clones; the result is the median")
	limit := flag.Duration("limit", 30*time.Minute, "`time` after which everything is stopped")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	err := measure(ctx, max(*rounds, 1))
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstrun:", err)
		os.Exit(1)
	}
}

// measure prints the times of each round, their medians, and the answers of the last round.
func measure(ctx context.Context, rounds int) error {
	root, err := peer.Root()
	if err != nil {
		return err
	}
	load, _ := os.ReadFile("/proc/loadavg")
	averages := strings.Fields(string(load))
	fmt.Printf("%s, %d CPUs, load %s\n", runtime.Version(), runtime.NumCPU(), strings.Join(averages[:min(3, len(averages))], " "))
	fmt.Printf("seconds from `make run` to the first answer, and seconds of CPU\n\n%-8s %8s %8s %10s %10s\n", "round", "cold", "warm", "cold CPU", "warm CPU")
	var cold, warm []time.Duration
	var last start
	for n := range rounds {
		first, second, err := newcomer(ctx, root)
		if err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		fmt.Printf("%-8d %8.1f %8.1f %10.1f %10.1f\n", n+1, first.took.Seconds(), second.took.Seconds(), first.cpu.Seconds(), second.cpu.Seconds())
		cold, warm, last = append(cold, first.took), append(warm, second.took), second
	}
	fmt.Printf("%-8s %8.1f %8.1f\n", "median", median(cold).Seconds(), median(warm).Seconds())
	for _, l := range last.lines {
		fmt.Printf("\n$ %s\n%s", l.command, l.output)
	}
	return nil
}

// median returns the middle of a list, the lower one of an even number.
func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[(len(list)-1)/2]
}

// newcomer clones the repository at root into an empty directory, and starts the agent there
// twice.
func newcomer(ctx context.Context, root string) (cold, warm start, err error) {
	dir, err := os.MkdirTemp("", "nodens-firstrun-")
	if err != nil {
		return start{}, start{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	home, tmp, clone := filepath.Join(dir, "home"), filepath.Join(dir, "tmp"), filepath.Join(dir, "nodens")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Mkdir(tmp, 0o700)); err != nil {
		return start{}, start{}, err
	}
	if text, err := exec.CommandContext(ctx, "git", "clone", "-q", "--no-hardlinks", root, clone).CombinedOutput(); err != nil {
		return start{}, start{}, fmt.Errorf("git clone: %w: %s", err, text)
	}
	env := environment(home, tmp)
	if cold, err = run(ctx, clone, env); err == nil {
		warm, err = run(ctx, clone, env)
	}
	if err != nil {
		return start{}, start{}, err
	}
	left, err := os.ReadDir(tmp)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("make run left %v in its temporary directory", left)
	}
	return cold, warm, err
}

// passed are the variables that a newcomer's shell has because of the machine's network and Go.
var passed = []string{
	"PATH", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOTOOLCHAIN", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// environment returns the environment of a newcomer with that home directory. Modules are
// writable, so that the home directory can be removed.
func environment(home, tmp string) []string {
	env := []string{"HOME=" + home, "TMPDIR=" + tmp, "GOFLAGS=-modcacherw"}
	for _, name := range passed {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// line is a printed command, and what it printed in turn.
type line struct{ command, output string }

// start is one start of the agent.
type start struct {
	took  time.Duration // until the first answer
	cpu   time.Duration // of all its processes until they were stopped, whatever else the machine did
	lines []line
}

// run runs `make run` in dir until all lines that it prints have answers, and stops it.
func run(ctx context.Context, dir string, env []string) (s start, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := time.Now()
	m, err := startMake(ctx, dir, env)
	if err != nil {
		return start{}, err
	}
	go func() { cancel(m.wait()) }()
	defer func() { m.stop(); s.cpu = m.cpu() }()
	for command := range m.commands {
		output, err := answer(ctx, command, env)
		if err != nil {
			return start{}, fmt.Errorf("%w; make run wrote:\n%s", cmp.Or(context.Cause(ctx), err), m.log)
		}
		if len(s.lines) == 0 {
			s.took = time.Since(begin)
		}
		s.lines = append(s.lines, line{command, output})
	}
	if len(s.lines) == 0 {
		m.stop() // for the rest of its log
		return start{}, fmt.Errorf("make run printed no commands to try: %w; it wrote:\n%s", cmp.Or(context.Cause(ctx), errors.New("it ended")), m.log)
	}
	return s, nil
}

// answer runs a command until it prints something, or ctx ends.
func answer(ctx context.Context, command string, env []string) (string, error) {
	for {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = env
		output, err := cmd.Output()
		if err == nil && strings.TrimSpace(string(output)) != "" {
			return string(output), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s: no answer: %w", command, cmp.Or(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
