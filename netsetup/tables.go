package netsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"
)

const (
	// lockWait is how long one call waits for the xtables lock (iptables -w). One
	// second is the shortest that iptables takes besides not at all; more would let
	// a call outlive Teardown. A filter calls again where more patience is due.
	lockWait = time.Second

	// lockTries is how often one call is made while another program holds the xtables
	// lock, each waiting lockWait. Five seconds in all is what kube-proxy allows itself
	// too: a full reload of its own rules on a large cluster takes one to three, and a
	// lock held for longer is better reported than waited for.
	lockTries = 5

	// maxOutput bounds what is taken from a program. A chain of ten thousand rules, the
	// longest that somebody's firewall puts into a base chain, takes a megabyte; with
	// less it could not be read, and more has nothing that is ours.
	maxOutput = 8 << 20

	// runLimit is how long a program may take. Writing to a table of 50,000 rules takes a
	// few seconds on a busy node; what takes five times that hangs, and so would Run.
	runLimit = 20 * time.Second

	// killDelay is how long the pipes of a program that has ended, or was killed, are read
	// on. Nobody else has them open, so it is over at once; but it is counted from the end
	// of the program also if all is well, and on a machine whose processors are taken half
	// a second was not enough to read a line.
	killDelay = 10 * time.Second
)

// runner runs a program to its end, with input on its standard input, and returns its
// standard output. It blocks as long as the program runs, but not after ctx is done.
// Errors wrap ErrNoTool, ErrLocked, errMissing or fs.ErrPermission where that is the
// cause, and hold what the program wrote to standard error.
type runner func(ctx context.Context, input, program string, args ...string) (output string, err error)

// errMissing: a chain or table that a program was asked for is not there.
var errMissing = errors.New("no such chain")

// execute is the runner of this machine.
func execute(asked context.Context, input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(asked, runLimit)
	defer cancel()
	stdout, stderr := &capped{left: maxOutput}, &capped{left: maxOutput}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), stdout, stderr
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.buf.String(), nil
	case asked.Err() != nil:
		return "", asked.Err()
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s is not done after %v", program, runLimit)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	text := strings.Join(strings.Fields(stderr.buf.String()), " ")
	err = fmt.Errorf("%s: %w: %s", program, err, text)
	for _, c := range causes() {
		if strings.Contains(text, c.text) {
			return "", fmt.Errorf("%w: %w", c.sentinel, err)
		}
	}
	return "", err
}

// capped is a buffer that refuses what is too much, which ends the program. The buffer
// is not embedded: what it would read by itself is past counting.
type capped struct {
	buf  bytes.Buffer
	left int
}

// Write implements io.Writer.
func (c *capped) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		return 0, fmt.Errorf("more than %d bytes of output", maxOutput)
	}
	return c.buf.Write(p)
}

type cause struct {
	text     string
	sentinel error
}

// causes lists what iptables prints, in the order of looking for it: exit statuses
// don't tell the causes apart (4 is the lock in one build and lack of permission in the
// other), but the texts, which it never translates, do. The message of a lock file that
// cannot be opened names the lock and the permission, and the permission is the cause.
func causes() []cause {
	return []cause{
		{"Permission denied", fs.ErrPermission},
		{"Operation not permitted", fs.ErrPermission},
		{"holding the xtables lock", ErrLocked},
		{"Can't lock", ErrLocked},
		// iptables-nft has no lock; the kernel refuses a change that crosses another.
		{"Resource temporarily unavailable", ErrLocked},
		{"Device or resource busy", ErrLocked},
		// Of a list of a chain. The second is what iptables-nft 1.8.9 says where others
		// say the first.
		{"No chain/target/match by that name", errMissing},
		{"is incompatible, use 'nft' tool", errMissing},
		{"does not exist", errMissing},
	}
}

// patiently calls f until it does not report a held lock, ctx is done, or lockTries is
// used up, and returns what f returned last, or that the lock was held if ctx cut the
// next try off; ctx's error if f was never called. f waits for the lock itself, so there
// is no pause here.
func patiently(ctx context.Context, f func() error) error {
	err := ctx.Err()
	for try := 0; try < lockTries && ctx.Err() == nil; try++ {
		locked := err
		if err = f(); !errors.Is(err, ErrLocked) {
			if locked != nil && ctx.Err() != nil && err != nil {
				return locked
			}
			break
		}
	}
	return err
}
