package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// timeouts are how long the other side may take for a step.
type timeouts struct {
	// hello: nothing has to be looked up for it, so even on a crowded node it takes
	// milliseconds; a second might cut off a process that the kernel has just swapped in.
	hello time.Duration
	// step is for a message or a request that takes a little work: duplicates of sockets, the
	// word that a commit has come. More than hello, since the other has not been
	// waiting for it.
	step time.Duration
	// piece is for the next piece of the cache, on either side: the other one may be
	// collecting garbage, writing or reading its store, on a node with no time to spare.
	piece time.Duration
	// patience is how long a successor may take from its hello to commit, if it says
	// nothing else: the views' first lists (startup_timeout is 5 s) and the cache, ten
	// times over. It holds the place of the next successor, no more.
	patience time.Duration
	// drain is for what is under way: a query takes 6 s at most, a TCP connection without
	// one 10 s. More would keep a node's upgrade waiting for one slow client.
	drain time.Duration
	// settle is from then until the successor listens for its own one, which is the next
	// thing it does.
	settle time.Duration
}

func defaultTimeouts() timeouts {
	return timeouts{
		hello: 2 * time.Second, step: 5 * time.Second, piece: 10 * time.Second,
		patience: time.Minute, drain: 15 * time.Second, settle: 5 * time.Second,
	}
}

const (
	// maxPatience: a successor that asks for more is not believed. Views of large
	// clusters may be given minutes.
	maxPatience = 10 * time.Minute
	// maxConns are served at a time: one successor, the questions of probes, and agents that
	// wait. Half of it would do; each is a goroutine and 100 KiB.
	maxConns = 16
	// retryDelay is the pause before something is tried again that somebody else is in the way
	// of. Half would be as good.
	retryDelay = 100 * time.Millisecond
)

// phase is where a host is.
type phase int

const (
	serving      phase = iota // in charge, alone
	transferring              // in charge, a successor is at work
	draining                  // the successor has committed
	done                      // the successor has all
)

// Stats are a host's counts.
type Stats struct {
	// Completed hand-overs, Failed ones (before the commit, so nothing has happened), and
	// Resumed ones, which had been committed.
	Completed, Failed, Resumed uint64
}

// Server is the running agent's side: it waits for a successor. Its methods are safe for
// concurrent use.
type Server struct {
	dir    string
	source Source
	config Config
	log    *slog.Logger
	limits timeouts

	completed, failed, resumed atomic.Uint64

	handedOver      chan struct{}
	closeHandedOver sync.Once

	conns   chan struct{} // one token for each line
	running sync.WaitGroup

	mu           sync.Mutex
	serveCtx     context.Context // Serve's, for the listeners to come
	listener     *net.UnixListener
	socketInfo   os.FileInfo // of the listener's socket
	phase        phase
	phaseChanged chan struct{} // closed and made anew at each change of phase
	successor    *peerConn     // the successor's while giving
	stopping     bool
	suspended    bool // Stop has said that the successor is in charge
}

// Listen makes the socket in dir, in place of one that is there; dir is made if need be.
// The caller calls Serve next. The errors name -handover-dir and what to do.
func Listen(dir string, estate Source, c Config) (*Server, error) {
	l, info, err := listen(dir)
	if err != nil {
		return nil, err
	}
	return &Server{
		dir: dir, source: estate, config: c, log: c.logger(), limits: defaultTimeouts(),
		handedOver: make(chan struct{}), phaseChanged: make(chan struct{}), conns: make(chan struct{}, maxConns),
		listener: l, socketInfo: info,
	}, nil
}

// Serve hands over to those who ask, one at a time, until ctx is done, which should be at
// the end of the process: that it is going to end, Stop says. After that nothing of
// the Host is running. A successor that has committed stays in charge.
func (h *Server) Serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.mu.Lock()
	h.serveCtx = ctx
	h.accept()
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	_ = h.listener.Close()
	h.mu.Unlock()
	h.running.Wait()
}

// Suspended reports whether a successor is in charge: from its commit on, for as long as it
// lives.
func (h *Server) Suspended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase >= draining
}

// Done is closed when a successor has taken over everything and waits for one of its own. An
// agent that nobody starts anew ends then. It stays closed if the successor dies later.
func (h *Server) Done() <-chan struct{} { return h.handedOver }

// Stats gives the counts so far.
func (h *Server) Stats() Stats {
	return Stats{Completed: h.completed.Load(), Failed: h.failed.Load(), Resumed: h.resumed.Load()}
}

// Stop says that this agent is going to end. From here on no hand-over begins: those who
// connect wait for the process's end. One that is under way is waited for until ctx is done, and
// broken off then if the successor has not committed. The result is true if a successor
// is in charge: it has everything, or ctx is done. The agent ends without a teardown
// then, and without Resume. Else it stops as usual, and ends Serve last.
func (h *Server) Stop(ctx context.Context) (yielded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
	for h.phase == transferring || h.phase == draining {
		changed := h.phaseChanged
		h.mu.Unlock()
		select {
		case <-changed:
			h.mu.Lock()
			continue
		case <-ctx.Done():
		}
		h.mu.Lock()
		break
	}
	if h.phase == transferring {
		h.successor.close()
		h.setPhase(serving)
	}
	h.suspended = h.phase != serving
	return h.suspended
}

// setPhase sets the phase. The caller holds mu.
func (h *Server) setPhase(p phase) {
	h.phase = p
	close(h.phaseChanged)
	h.phaseChanged = make(chan struct{})
}

// compareAndSetPhase sets the phase if it is from.
func (h *Server) compareAndSetPhase(from, to phase) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != from {
		return false
	}
	h.setPhase(to)
	return true
}

// accept starts to accept at the listener there is. The caller holds mu.
func (h *Server) accept() {
	l, ctx := h.listener, h.serveCtx
	h.running.Go(func() {
		for ctx.Err() == nil {
			conn, err := l.AcceptUnix()
			switch {
			case err == nil:
				h.serveConn(ctx, conn)
			case errors.Is(err, net.ErrClosed):
				return
			default: // no more files, say
				pause(ctx, retryDelay)
			}
		}
	})
}

// serveConn serves conn on a goroutine of its own, if there is room.
func (h *Server) serveConn(ctx context.Context, conn *net.UnixConn) {
	select {
	case h.conns <- struct{}{}:
	default:
		_ = conn.Close() // they come again
		return
	}
	h.running.Go(func() {
		defer func() { <-h.conns }()
		l := newPeerConn(conn)
		defer l.close()
		stop := context.AfterFunc(ctx, l.close)
		defer stop()
		h.handle(ctx, l)
	})
}

// handle finds out what the other end wants, and does it.
func (h *Server) handle(ctx context.Context, l *peerConn) {
	who, err := l.checkPeer()
	if err != nil {
		h.log.Warn("hand-over refused", "err", err)
		return
	}
	l.setDeadline(time.Now().Add(h.limits.hello))
	hi, err := l.receiveHello()
	if err != nil {
		h.log.Debug("somebody connected for a hand-over and did not say hello", "pid", who.Pid, "err", err)
		return
	}
	switch hi.Purpose {
	case purposeState:
		_ = l.send(kindHello, h.helloHead(h.state()), nil)
	case purposeWatch:
		if l.send(kindHello, h.helloHead(h.state()), nil) == nil {
			h.keepOpen(l)
		}
	case purposeTakeover, "":
		h.handleTakeover(ctx, l, hi)
	}
}

// receiveHello receives the hello, which is the first message in every version.
func (l *peerConn) receiveHello() (helloHead, error) {
	m, err := l.receive()
	if err != nil {
		return helloHead{}, err
	}
	m.close()
	if m.kind != kindHello {
		return helloHead{}, fmt.Errorf("%w of kind %d instead of hello", errMalformed, m.kind)
	}
	var hi helloHead
	err = decode(m.kind, m.head, &hi)
	return hi, err
}

// helloHead is this host's hello.
func (h *Server) helloHead(state string) helloHead {
	hi := helloHead{Min: minVersion, Max: maxVersion, Agent: h.config.Version, State: state, Ready: true}
	if state == stateYielded {
		hi.Ready, hi.Reason = false, "it has handed over to another agent"
	} else if h.config.Ready != nil {
		if err := h.config.Ready(); err != nil {
			hi.Ready, hi.Reason = false, truncate(err.Error())
		}
	}
	return hi
}

func (h *Server) state() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.phase >= draining:
		return stateYielded
	case h.stopping:
		return stateStopping
	}
	return stateOK
}

// keepOpen keeps the line until the other side ends it, or Serve.
func (h *Server) keepOpen(l *peerConn) {
	l.setDeadline(time.Time{})
	_ = l.drain()
}

// relisten listens again if somebody else has taken the name since.
func (h *Server) relisten() {
	if h.ownsSocket() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serveCtx.Err() != nil {
		return
	}
	l, info, err := listen(h.dir)
	if err != nil {
		h.log.Error("no further agent can take over from this one", "err", err)
		return
	}
	_ = h.listener.Close()
	h.listener, h.socketInfo = l, info
	h.accept()
}

// ownsSocket reports whether the socket that others find is this host's.
func (h *Server) ownsSocket() bool {
	now, err := os.Lstat(filepath.Join(h.dir, SocketName))
	h.mu.Lock()
	defer h.mu.Unlock()
	return err == nil && os.SameFile(now, h.socketInfo)
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
