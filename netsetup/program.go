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

	// runLimit is how long a program may take. Writing to a table of 50,000 rules takes a
	// few seconds on a busy node; what takes five times that hangs, and so would Run.
	runLimit = 20 * time.Second

	// killDelay is how long the pipes of a program that has ended, or was killed, are read
	// on. Nobody else has them open, so it is over at once; but it is counted from the end
	// of the program also if all is well, and on a machine whose processors are taken half
	// a second was not enough to read a line.
	killDelay = 10 * time.Second
)

var (
	// errMissing: a chain or table that iptables was asked for is not there.
	errMissing = errors.New("no such chain")
	// errNone: what nft was asked for is not there.
	errNone = errors.New("no such table or chain")
	// errWords: a name of somebody else's is a word of nft's language.
	errWords = errors.New("cannot be said in the language of nft")
	// errNative: a table has rules of nf_tables that iptables can't read.
	errNative = errors.New("the table is not for iptables")
)

// runner runs a program to its end, with input on its standard input, and returns its
// standard output. It blocks as long as the program runs, but not after ctx is done.
// Errors hold what the program wrote to standard error, and wrap ErrNoTool, ErrLocked,
// fs.ErrPermission or those of this file where its words say so.
type runner func(ctx context.Context, input, program string, args ...string) (output string, err error)

// execute is the runner of this machine.
func execute(asked context.Context, input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(asked, runLimit)
	defer cancel()
	stdout, stderr := &capped{left: maxOutput}, &capped{left: maxOutput}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), stdout, stderr
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.buf.String(), nil
	case asked.Err() != nil:
		return "", fmt.Errorf("%s: %w", program, asked.Err())
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s is not done after %v", program, runLimit)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	said := strings.Join(strings.Fields(stderr.buf.String()), " ")
	err = fmt.Errorf("%s: %w: %s", strings.Join(append([]string{program}, args...), " "), err, said)
	for _, c := range causes() {
		if strings.Contains(said, c.text) && !errors.Is(err, c.sentinel) {
			err = fmt.Errorf("%w: %w", c.sentinel, err)
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

// causes lists what the programs print, who don't translate it: exit statuses don't tell
// the causes apart (4 is the lock in one build of iptables and lack of permission in the
// other), but these texts do. The same words may mean different things to those who ask.
func causes() []cause {
	return []cause{
		{"Permission denied", fs.ErrPermission},
		{"Operation not permitted", fs.ErrPermission},
		{"holding the xtables lock", ErrLocked},
		{"Can't lock", ErrLocked},
		// nf_tables has no lock; the kernel refuses a change that crosses another.
		{"Resource temporarily unavailable", ErrLocked},
		{"Device or resource busy", ErrLocked},
		// Of a list of a chain. The second is what iptables-nft 1.8.9 says where others
		// say the first.
		{"No chain/target/match by that name", errMissing},
		{"is incompatible, use 'nft' tool", errMissing},
		{"does not exist", errMissing},
		{"is incompatible, use 'nft' tool", errNative},
		{"No such file or directory", errNone},
		{"syntax error", errWords},
	}
}
