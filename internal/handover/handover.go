package handover

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"
)

// Socket is a listening socket that is handed over.
type Socket struct {
	// Role is its purpose: "udp" and "tcp" for DNS, "http" for health, readiness and metrics.
	Role string
	// Addr is its listen address, as its owner's configuration writes it.
	Addr string
	// File is the socket. The receiver closes it.
	File *os.File
}

// Conn is a client's TCP connection that is handed over.
type Conn struct {
	// Addr is the address of the listener that accepted it.
	Addr string
	// Read is the part of a message that has already been read from it: at most 64 KiB and
	// the two bytes of its length.
	Read []byte
	// File is the connection. The take function of [Predecessor.Commit] closes it; the pass
	// function of [Source.Suspend] does not.
	File *os.File
}

// Source is an agent: the running agent, which is handed over, or the successor that gives back
// what it has received. One method is called at a time.
type Source interface {
	// Save writes the files from which a successor starts. If it takes longer than 5 s, it may be running when the next
	// method is called.
	Save()
	// Sockets returns duplicates of all listening sockets; the caller closes them. The agent
	// keeps reading its own. Neither agent may change their blocking mode, or shut them down,
	// because the other one shares them.
	Sockets() ([]Socket, error)
	// WriteCache writes the answers in the cache to w, while the agent serves.
	WriteCache(ctx context.Context, w io.Writer) error
	// Suspend stops reading, until Resume is called: the successor reads. It gives the clients'
	// TCP connections to pass, each when no query is in flight on it, from any goroutine, but
	// not after it has returned. pass does not close the connection's file; its caller does.
	// After an error of pass the connection stays with this agent. Suspend returns when no
	// query is in flight, or when ctx is done: after 15 s, or when the successor ends.
	Suspend(ctx context.Context, pass func(Conn) error) error
	// Resume makes the agent serve again after Suspend, whatever Suspend returned: the successor
	// has died, or has finished after ResumeReading.
	Resume()

	// Statistics returns what a successor compares itself with: at most 64 KiB.
	Statistics() []byte
	// ReadCache adds the answers in r that are newer than the agent's own. r is what the
	// successor's WriteCache writes.
	ReadCache(ctx context.Context, r io.Reader) error
	// ResumeReading starts reading again after Suspend, while the successor reads, too. Resume
	// follows.
	ResumeReading()
	// Adopt serves a client's connection that a successor gives back. It owns the file.
	Adopt(Conn)
	// Release frees memory: the successor keeps what it has. Resume may follow nevertheless.
	Release()
}

// Reason is why a successor gives back.
type Reason struct {
	Text string
	// Kinds of what is worse than before, at most 8. Without any the successor is being stopped,
	// and may take over again.
	Kinds []string
}

// Config are the settings of either side of a handover.
type Config struct {
	// Version of this agent, for the other agent's log.
	Version string
	// Logger may be nil: nothing is logged.
	Logger *slog.Logger
	// Ready returns nil if this agent is ready (see the function Ready). It must be safe for
	// concurrent use. Without a function the agent is ready.
	Ready func() error
	// Recent returns the times of the last handovers on this node, which a server tells its successor: at most
	// 16. It must be safe for concurrent use. Without a function there are none.
	Recent func() []time.Time
	// Patience is how long this agent may take from Connect to Commit. Then its predecessor
	// ends the handover. 0 means a minute; the most is ten.
	Patience time.Duration
	// Compare: as a successor, this agent compares itself with its predecessor after the commit.
	// Until [Predecessor.Keep] it calls [Predecessor.Alive] at least every second.
	Compare bool
	// Identity identifies this agent as a successor. A server refuses the identity of a successor
	// that has given back, unless Compare is false. "" is never refused.
	Identity string
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

var (
	// ErrFolder: other users can write to the directory, and could pose as an agent.
	ErrFolder = errors.New("the directory is not the agent's alone")
	// ErrBusy: the running agent was handing over to another successor, or stopping.
	ErrBusy = errors.New("the running agent hands over to another one already, or is stopping")
	// ErrVersion: the running agent has not ended, and speaks no common protocol version.
	ErrVersion = errors.New("the running agent speaks no common version of the handover protocol")
	// ErrRefused: an agent of this identity has given back the node already.
	ErrRefused = errors.New("the running agent has taken the node back from this agent")
	// ErrGone: the predecessor has ended. What it has sent is valid.
	ErrGone = errors.New("the running agent has ended")
)
