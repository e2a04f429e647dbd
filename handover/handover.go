package handover

import (
	"context"
	"errors"
	"io"
	"os"
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
	// Read is the beginning of a message that has been read from it.
	Read []byte
	// File is the connection. Whoever receives it closes it.
	File *os.File
}

// Estate is what a running agent hands over. Its methods are called from one goroutine.
type Estate interface {
	// Sockets gives duplicates of all listening sockets; the caller closes them. The
	// agent goes on reading from its own.
	Sockets() ([]Socket, error)
	// WriteCache writes the answers in the cache to w. Queries go on meanwhile.
	WriteCache(ctx context.Context, w io.Writer) error
	// Yield stops reading, for good or until Resume: the successor reads. It gives the
	// clients' TCP connections to pass as they come to rest (an error of it: the
	// connection stays), and returns when nothing is under way any more, or when ctx is
	// done.
	Yield(ctx context.Context, pass func(Conn) error) error
	// Resume goes back to reading: the successor has died.
	Resume()
}

// ErrBusy: the agent that runs is handing over to somebody else, or is stopping.
var ErrBusy = errors.New("the running agent hands over to another one already, or is stopping")

// Host is the running agent's side: it waits for a successor.
type Host struct{}

// Listen makes the socket in dir, in place of one that is there.
func Listen(dir string, estate Estate) (*Host, error) { return nil, errors.ErrUnsupported }

// Serve hands over to those who ask, one at a time, until ctx is done.
func (h *Host) Serve(ctx context.Context) {}

// Yielded is closed when a successor has taken over, and open again if it has died.
func (h *Host) Yielded() bool { return false }

// Predecessor is the successor's side of a hand-over.
type Predecessor struct{}

// Connect finds the agent that runs. Nobody: nil, without an error.
func Connect(ctx context.Context, dir string) (*Predecessor, error) { return nil, nil }

// Sockets are what the predecessor listens with.
func (p *Predecessor) Sockets(ctx context.Context) ([]Socket, error) { return nil, nil }

// Cache is the stream that the predecessor's [Estate.WriteCache] writes.
func (p *Predecessor) Cache(ctx context.Context) (io.ReadCloser, error) { return nil, nil }

// Commit says that this agent reads from the sockets now, and returns when the
// predecessor does so no more. From then on each connection that it passes on is given
// to take, on a goroutine, until there are no more.
func (p *Predecessor) Commit(ctx context.Context, take func(Conn)) error { return nil }

// Close ends the hand-over. Before Commit it leaves everything to the predecessor.
func (p *Predecessor) Close() error { return nil }
