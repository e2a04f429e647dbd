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
	// maxOutput bounds what is taken from a program. The chains of 100,000 Services, which
	// nft lists all at once, are 15 MB, and a chain of ten thousand rules is one; beyond
	// four times the first something is not what it should be.
	maxOutput = 64 << 20

	// execTimeout is how long a program may take. Writing to a table of 50,000 rules takes a
	// few seconds on a busy node; what takes five times that hangs, and so would Run.
	execTimeout = 20 * time.Second

	// pipeGrace is how long the pipes of a program that has ended, or was killed, are read
	// on. Nobody else has them open, so it is over at once; but it is counted from the end
	// of the program also if all is well, and on a machine whose processors are taken half
	// a second was not enough to read a line.
	pipeGrace = 10 * time.Second
)

var (
	// errNoChain: a chain or table that iptables was asked for is not there.
	errNoChain = errors.New("no such chain")
	// errNotFound: what nft was asked for is not there.
	errNotFound = errors.New("no such table or chain")
	// errSyntax: a name of somebody else's is a word of nft's language.
	errSyntax = errors.New("cannot be said in the language of nft")
	// errNotXtables: a table has rules of nf_tables that iptables can't read.
	errNotXtables = errors.New("the table is not for iptables")
)

// runner runs a program to its end, with input on its standard input, and returns its
// standard output. It blocks as long as the program runs, but not after ctx is done.
// Errors hold what the program wrote to standard error, and wrap ErrNoTool, ErrLocked,
// fs.ErrPermission or those of this file where its words say so.
type runner func(ctx context.Context, input, program string, args ...string) (output string, err error)

// execute is the runner of this machine.
func execute(asked context.Context, input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(asked, execTimeout)
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
	case asked.Err() != nil:
		return "", fmt.Errorf("%s: %w", program, asked.Err())
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s is not done after %v", program, execTimeout)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	said := strings.Join(strings.Fields(stderr.buf.String()), " ")
	err = fmt.Errorf("%s: %w: %s", strings.Join(append([]string{program}, args...), " "), err, said)
	for _, c := range errorPatterns() {
		if strings.Contains(said, c.text) && !errors.Is(err, c.sentinel) {
			err = fmt.Errorf("%w: %w", c.sentinel, err)
		}
	}
	return "", err
}

// limitedBuffer is a buffer that refuses what is too much, which ends the program. The buffer
// is not embedded: what it would read by itself is past counting.
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

type errorPattern struct {
	text     string
	sentinel error
}

// errorPatterns lists what the programs print, who don't translate it: exit statuses don't tell
// the causes apart (4 is the lock in one build of iptables and lack of permission in the
// other), but these texts do. The same words may mean different things to those who ask.
func errorPatterns() []errorPattern {
	return []errorPattern{
		{"Permission denied", fs.ErrPermission},
		{"Operation not permitted", fs.ErrPermission},
		{"holding the xtables lock", ErrLocked},
		{"Can't lock", ErrLocked},
		// nf_tables has no lock; the kernel refuses a change that crosses another.
		{"Resource temporarily unavailable", ErrLocked},
		{"Device or resource busy", ErrLocked},
		// Of a list of a chain. The second is what iptables-nft 1.8.9 says where others
		// say the first.
		{"No chain/target/match by that name", errNoChain},
		{"is incompatible, use 'nft' tool", errNoChain},
		{"does not exist", errNoChain},
		{"is incompatible, use 'nft' tool", errNotXtables},
		{"No such file or directory", errNotFound},
		{"syntax error", errSyntax},
	}
}
