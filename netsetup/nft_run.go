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
	// nftOutputLimit is how much a program may print. The chains of 100,000 Services are
	// 15 MB; beyond four times that something is not what it should be.
	nftOutputLimit = 64 << 20

	// nftGrace is how long the pipes of a program that has ended, or was killed, are read
	// on. It has no children, so that it is over at once; but it is counted from the end
	// of the program also if all is well, and a second can pass on a busy machine.
	nftGrace = 10 * time.Second
)

var (
	// errNftNone: what was asked for is not there.
	errNftNone = errors.New("no such table or chain")
	// errNftWords: a name of somebody else's is a word of nft's language.
	errNftWords = errors.New("cannot be said in the language of nft")
	// errNftNative: a table has rules that iptables can't read.
	errNftNative = errors.New("the table is not for iptables")
)

// nftRun runs a program with a script on its standard input and returns what it prints.
// The error has what the program says, and wraps ErrNoTool, fs.ErrPermission, ErrLocked,
// one of those above, or ctx's where that is the cause.
func nftRun(ctx context.Context, script, program string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", program, ErrNoTool, err)
	}
	out, problem := limited{left: nftOutputLimit}, limited{left: nftOutputLimit}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(script)
	cmd.Stdout, cmd.Stderr = &out, &problem
	cmd.WaitDelay = nftGrace
	err = cmd.Run()
	if err == nil {
		return out.buf.Bytes(), nil
	}
	what := program + " " + strings.Join(args, " ")
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", what, ctx.Err())
	}
	said, _, _ := strings.Cut(strings.TrimSpace(problem.buf.String()), "\n")
	if said == "" {
		said = err.Error()
	}
	for _, c := range nftCauses {
		if strings.Contains(problem.buf.String(), c.text) {
			return nil, fmt.Errorf("%s: %w: %s", what, c.sentinel, said)
		}
	}
	return nil, fmt.Errorf("%s: %s", what, said)
}

// nftCauses are the programs' words for errors that somebody tells apart. They never
// translate them with LC_ALL=C.
var nftCauses = []struct {
	text     string
	sentinel error
}{
	{"Operation not permitted", fs.ErrPermission},
	{"Permission denied", fs.ErrPermission},
	{"Resource temporarily unavailable", ErrLocked},
	{"Device or resource busy", ErrLocked},
	{"No such file or directory", errNftNone},
	{"syntax error", errNftWords},
	{"is incompatible, use 'nft' tool", errNftNative},
}

// limited is a buffer that takes no more than left bytes. bytes.Buffer is not embedded:
// its ReadFrom would go past the limit.
type limited struct {
	buf  bytes.Buffer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, errors.New("it prints more than can be read")
	}
	l.left -= len(p)
	return l.buf.Write(p)
}
