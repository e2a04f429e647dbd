package netsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	// maxOutput bounds the output of a program. nft prints 15 MB for the chains of 100,000
	// Services.
	maxOutput = 64 << 20

	// execTimeout is how long a program may run. Writing to a table of 50,000 rules takes a
	// few seconds on a busy node.
	execTimeout = 20 * time.Second

	// pipeGrace is how long the pipes of a program are read after its end. It counts after a
	// regular end, too, where half a second was not enough on a busy machine to read a line.
	pipeGrace = 10 * time.Second

	// lockWait is how long one call waits for the xtables lock (iptables -w). iptables
	// takes whole seconds. A longer wait would let a call outlive Teardown.
	lockWait = time.Second

	// lockTries is how often a call is made while another program holds the xtables lock.
	// kube-proxy waits five seconds in all, too: reloading its rules on a large cluster
	// takes one to three.
	lockTries = 5
)

var (
	// errNoChain: the chain or table that iptables was asked about does not exist.
	errNoChain = errors.New("no such chain")
	// errNotXtables: a table has rules of nf_tables that iptables can't read.
	errNotXtables = errors.New("another program's rules in the table are not for iptables")
	// errLockFile: iptables can't open the file with the xtables lock.
	errLockFile = errors.New("the lock file can't be opened")
	// errTimeout: a program took longer than execTimeout.
	errTimeout = fmt.Errorf("not done after %v", execTimeout)
	// errRuleGone: a rule that was to be deleted is not there.
	errRuleGone = errors.New("a rule is gone")
)

// execute runs a program to its end, with input on its standard input, and returns its standard
// output. It kills the program when ctx is done, after execTimeout, and at maxOutput bytes of
// output. Errors contain what the program wrote to standard error, and wrap ErrNoTool,
// ErrLocked, fs.ErrPermission or a sentinel of this file where that is the cause.
func execute(ctx context.Context, input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execTimeout, errTimeout)
	defer cancel()
	stdout, stderr := &limitedBuffer{remaining: maxOutput}, &limitedBuffer{remaining: maxOutput}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), stdout, stderr
	cmd.WaitDelay = pipeGrace
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.buf.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", program, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	message := oneLine(stderr.buf.String())
	return "", &commandError{
		text:   fmt.Sprintf("%s: %v: %s", strings.Join(append([]string{program}, args...), " "), err, message),
		causes: append([]error{err}, knownCauses(message)...),
	}
}

// commandError is a program's failure. Its message is on one line and contains what the
// program wrote.
type commandError struct {
	text   string
	causes []error
}

// Error implements error.
func (e *commandError) Error() string { return e.text }

// Unwrap returns the error of package exec or go-iptables, and sentinels of this package.
func (e *commandError) Unwrap() []error { return e.causes }

// oneLine replaces line breaks and runs of spaces by one space each.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// limitedBuffer is a buffer whose Write fails beyond a limit, which ends the program. The buffer is
// not embedded, because its ReadFrom would bypass the limit.
type limitedBuffer struct {
	buf       bytes.Buffer
	remaining int
}

// Write implements io.Writer.
func (c *limitedBuffer) Write(p []byte) (int, error) {
	if c.remaining -= len(p); c.remaining < 0 {
		return 0, fmt.Errorf("more than %d bytes of output", maxOutput)
	}
	return c.buf.Write(p)
}

// errorPatterns maps what the programs print, always in English, to sentinels. Their exit
// statuses are not enough: 4 is a held lock in one mode of iptables and a lack of permission
// in the other.
var errorPatterns = []struct {
	text     string
	sentinel error
}{
	{"Permission denied", fs.ErrPermission},
	{"Operation not permitted", fs.ErrPermission},
	{"holding the xtables lock", ErrLocked},
	{"Can't lock", ErrLocked},
	{"can't open lock file", errLockFile},
	// nf_tables has no lock; the kernel refuses a change that conflicts with another one.
	{"Resource temporarily unavailable", ErrLocked},
	{"Device or resource busy", ErrLocked},
	{"is incompatible, use 'nft' tool", errNotXtables},
	{"RULE_DELETE failed (No such file or directory)", errRuleGone},
	{"does a matching rule exist in that chain?", errRuleGone},
}

// knownCauses returns the sentinels whose patterns text contains.
func knownCauses(text string) (sentinels []error) {
	for _, p := range errorPatterns {
		if strings.Contains(text, p.text) {
			sentinels = append(sentinels, p.sentinel)
		}
	}
	return sentinels
}

// retryLocked calls f, which waits for the xtables lock itself, until f returns something other
// than ErrLocked, ctx is done, or f was called lockTries times. It returns f's last error;
// ErrLocked if ctx ended a retry; ctx's error if f was never called.
func retryLocked(ctx context.Context, f func() error) error {
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
