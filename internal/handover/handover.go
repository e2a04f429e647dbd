package handover

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"
)

// Socket is a listening socket on its way from one agent to the next.
type Socket struct {
	// Role is what it is for: "udp" and "tcp" for DNS, "http" for health, readiness and
	// metrics.
	Role string
	// Addr is the address that it was asked to listen at, as the part that has it
	// calls it.
	Addr string
	// File is the socket. Whoever receives it closes it.
	File *os.File
}

// Conn is a TCP connection of a client on its way from one agent to the next.
type Conn struct {
	// Addr is the address of the listener it came in at.
	Addr string
	// Read is the beginning of a message that has been read from it: 64 KiB and the two
	// bytes of its length at most.
	Read []byte
	// File is the connection. The successor's take closes it; the pass of
	// [Source.Suspend] leaves it to its caller.
	File *os.File
}

// Source is what a running agent hands over. Its methods are called one at a time.
type Source interface {
	// Sockets gives duplicates of all listening sockets; the caller closes them. The
	// agent goes on reading from its own. Nobody may make them non-blocking for the
	// other, or shut them down.
	Sockets() ([]Socket, error)
	// WriteCache writes the answers in the cache to w. Queries go on meanwhile.
	WriteCache(ctx context.Context, w io.Writer) error
	// Suspend stops reading, for good or until Resume: the successor reads. It gives the
	// clients' TCP connections to pass as they come to rest, from any goroutine, but
	// not after it has returned. pass does not close the connection's file, its
	// caller does; after an error of pass the connection stays. Yield returns when
	// nothing is under way any more, or when ctx is done: after 15 s, or at the
	// successor's end.
	Suspend(ctx context.Context, pass func(Conn) error) error
	// Resume goes back to reading after Yield, however that ended: the successor has
	// died.
	Resume()
}

// Config is what both sides of a hand-over have to know.
type Config struct {
	// Version is this agent's, for the other's log.
	Version string
	// Logger nil: nothing is logged.
	Logger *slog.Logger
	// Ready is asked by [Ready] at a Host: nil if this agent is ready. It may be called from
	// several goroutines. No function: ready.
	Ready func() error
	// Patience is how long this agent may take from Connect to Commit; then its predecessor
	// gives up on it and takes others. 0 is a minute, and ten are the most.
	Patience time.Duration
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

var (
	// ErrFolder: others than the agent's user can write to the directory, so that who is
	// met there, and who takes over, may be anybody.
	ErrFolder = errors.New("the directory is not the agent's alone")
	// ErrBusy: the agent that runs was handing over to somebody else, or stopping, all the
	// time.
	ErrBusy = errors.New("the running agent hands over to another one already, or is stopping")
	// ErrVersion: the agent that runs has not ended, and knows no version of the protocol
	// that this one knows.
	ErrVersion = errors.New("the running agent speaks no common version of the hand-over")
	// ErrGone: the predecessor has ended. What has been got from it is good.
	ErrGone = errors.New("the running agent has ended")
)
