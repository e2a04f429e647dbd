package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// timeouts bound the steps of the other side.
type timeouts struct {
	// hello is the time for a hello and its reply.
	hello time.Duration
	// step is the time for other messages and requests, such as duplicating the sockets.
	step time.Duration
	// piece is the time for the next piece of the cache, on either side.
	piece time.Duration
	// patience is how long a successor may take from hello to commit, unless its hello says
	// otherwise: for the views' first lists and the cache. Meanwhile other successors wait.
	patience time.Duration
	// drain is the time for queries in flight, which take 6 s at most, and for TCP connections
	// in the middle of a message, which have 10 s.
	drain time.Duration
	// settle is the time after that until the successor listens for its own successor.
	settle time.Duration
	// alive is the time between two messages of a successor that compares itself. Then it hangs.
	alive time.Duration
	// back is the time for the cache that a successor gives back. Meanwhile it serves.
	back time.Duration
}

func defaultTimeouts() timeouts {
	return timeouts{
		hello: 2 * time.Second, step: 5 * time.Second, piece: 10 * time.Second,
		patience: time.Minute, drain: 15 * time.Second, settle: 5 * time.Second,
		alive: 3 * time.Second, back: 3 * time.Second,
	}
}

const (
	// maxPatience bounds the patience that a hello asks for.
	maxPatience = 10 * time.Minute
	// maxConns bounds the connections: one successor, probes, and agents that wait. Each
	// takes a goroutine and 100 KiB.
	maxConns = 16
	// retryDelay is the pause before a step is tried again.
	retryDelay = 100 * time.Millisecond
)

// phase is the state of a server.
type phase int

const (
	serving      phase = iota // reading, no successor
	transferring              // reading, a successor is connected
	draining                  // the successor has committed
	done                      // the successor has everything
)

// Stats are the counters of a Server.
type Stats struct {
	// Completed handovers, Failed ones (before the commit), and Resumed ones (after it), without
	// those that a successor gave back: Returned.
	Completed, Failed, Resumed, Returned uint64
	// Refused successors, because they had given back before.
	Refused uint64
}

// Server is the running agent's side of a handover: it waits for a successor. Its methods are
// safe for concurrent use.
type Server struct {
	dir    string
	source Source
	config Config
	log    *slog.Logger
	limits timeouts

	completed, failed, resumed, returned, refused atomic.Uint64

	handedOver      chan struct{}
	closeHandedOver sync.Once

	conns   chan struct{} // holds a value for each connection
	running sync.WaitGroup

	mu           sync.Mutex
	serveCtx     context.Context // Serve's context, for later listeners
	listener     *net.UnixListener
	socketInfo   os.FileInfo // of the listener's socket file
	phase        phase
	phaseChanged chan struct{} // closed and replaced at each change of phase
	successor    *peerConn     // while transferring
	stopping     bool
	suspended    bool // Stop has returned true
	refusals     refusals
}

// Listen creates the socket in dir and replaces an existing one. It creates dir if it does not
// exist. The caller calls Serve next. Errors name --handover-dir and the remedy.
func Listen(dir string, source Source, c Config) (*Server, error) {
	l, info, err := listen(dir)
	if err != nil {
		return nil, err
	}
	return &Server{
		dir: dir, source: source, config: c, log: c.logger(), limits: defaultTimeouts(),
		handedOver: make(chan struct{}), phaseChanged: make(chan struct{}), conns: make(chan struct{}, maxConns),
		listener: l, socketInfo: info,
	}, nil
}

// ListenForReady is Listen for an agent that can't write to dir: [Ready] finds it, and a successor does not.
func ListenForReady(dir string, source Source, c Config) (*Server, error) {
	return Listen(memoryDir(dir), source, c)
}

// Serve hands over to successors, one at a time, until ctx is done, which should be at the end
// of the process; call Stop first. When Serve returns, no goroutine of h runs. A successor
// that has committed keeps serving.
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

// HandingOver reports whether a successor has connected and has not failed: both agents have the sockets.
func (h *Server) HandingOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase != serving
}

// Done returns a channel that is closed when a successor has taken over everything, waits for its
// own successor, and, if it compares itself, has decided to keep everything. An agent that is not
// restarted ends then. The channel stays closed if the successor dies later.
func (h *Server) Done() <-chan struct{} { return h.handedOver }

// Stats returns the counters.
func (h *Server) Stats() Stats {
	return Stats{
		Completed: h.completed.Load(), Failed: h.failed.Load(), Resumed: h.resumed.Load(), Returned: h.returned.Load(),
		Refused: h.refused.Load(),
	}
}

// TakenBack returns why this agent last took the node back from a successor that was worse or
// failed while it compared itself, "" if it never has, and how often, by kind of the reason.
func (h *Server) TakenBack() (reason string, kinds map[string]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals.last, maps.Clone(h.refusals.kinds)
}

// Stop announces that this agent is going to end. No handover begins after it: agents that
// connect wait for the end of this process. Stop waits for a handover in progress until ctx is
// done, and then ends it if the successor has not committed. It returns true if a successor
// serves; then the agent ends without a teardown, and Resume is not called any more. If it
// returns false, the agent stops as usual, and ends Serve last.
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

// Continue undoes a Stop that has returned false: this agent does not end after all.
func (h *Server) Continue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = false
}

// setPhase sets the phase. The caller holds h.mu.
func (h *Server) setPhase(p phase) {
	h.phase = p
	close(h.phaseChanged)
	h.phaseChanged = make(chan struct{})
}

// compareAndSetPhase sets the phase to to if it is from, and reports whether it was.
func (h *Server) compareAndSetPhase(from, to phase) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != from {
		return false
	}
	h.setPhase(to)
	return true
}

// accept starts to accept connections of the current listener. The caller holds h.mu.
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
			default: // for example, too many open files
				pause(ctx, retryDelay)
			}
		}
	})
}

// serveConn handles c on a goroutine of its own, or closes it if there are too many.
func (h *Server) serveConn(ctx context.Context, conn *net.UnixConn) {
	select {
	case h.conns <- struct{}{}:
	default:
		_ = conn.Close() // the other end tries again
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

// handle receives the hello and does what its purpose says.
func (h *Server) handle(ctx context.Context, l *peerConn) {
	who, err := l.checkPeer()
	if err != nil {
		h.log.Warn("connection refused", "err", err)
		return
	}
	l.setDeadline(time.Now().Add(h.limits.hello))
	hi, err := l.receiveHello()
	if err != nil {
		h.log.Debug("connection without hello", "pid", who.Pid, "err", err)
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

// helloHead returns the hello of this server.
func (h *Server) helloHead(state string) helloHead {
	hi := helloHead{Min: minVersion, Max: maxVersion, Agent: h.config.Version, State: state, Ready: true, Compare: true, Saves: true}
	if h.config.Recent != nil {
		for _, t := range h.config.Recent() {
			hi.Recent = append(hi.Recent, t.Unix())
		}
	}
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

// keepOpen waits until the other side closes the connection, or Serve ends.
func (h *Server) keepOpen(l *peerConn) {
	l.setDeadline(time.Time{})
	_ = l.drain()
}

// relisten creates the socket again if another agent's has replaced it.
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
		h.log.Error("no successor can take over from this agent", "err", err)
		return
	}
	_ = h.listener.Close()
	h.listener, h.socketInfo = l, info
	h.accept()
}

// ownsSocket reports whether the socket file is this server's.
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

// handleTakeover handles the hello of an agent that wants to take over.
func (h *Server) handleTakeover(ctx context.Context, l *peerConn, hi helloHead) {
	version := hi.commonVersion()
	state, reason := h.claimSuccessor(l, hi, version != 0)
	reply := h.helloHead(state)
	if state == stateRefused {
		reply.Reason = reason
	}
	if err := l.send(kindHello, reply, nil); err != nil {
		h.compareAndSetPhase(transferring, serving)
		return
	}
	log := h.log.With("successor", truncate(hi.Agent))
	switch {
	case version == 0:
		log.Warn("successor speaks no common protocol version; it waits for the end of this agent",
			"its_versions", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "versions", fmt.Sprintf("%d-%d", minVersion, maxVersion))
		h.keepOpen(l)
	case state == stateRefused:
		log.Warn("successor refused: this agent has taken the node back from it", "reason", reason)
	case state == stateStopping:
		log.Info("successor waits for the end of this agent, which is stopping")
		h.keepOpen(l)
	case state == stateOK:
		h.serveSuccessor(ctx, l, hi)
	}
}

// claimSuccessor makes l the successor's connection if there is none, and if it is wanted. It
// returns the state for the hello, and the reason for stateRefused.
func (h *Server) claimSuccessor(l *peerConn, hi helloHead, wanted bool) (state, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason = h.refusals.of(hi); h.phase == serving && !h.stopping && reason != "" {
		h.refused.Add(1)
		return stateRefused, reason
	}
	switch {
	case h.phase != serving:
		return stateBusy, ""
	case h.stopping:
		return stateStopping, ""
	case wanted:
		h.successor = l
		h.setPhase(transferring)
	}
	return stateOK, ""
}

// serveSuccessor hands over to the successor at l. It returns when either agent ends.
func (h *Server) serveSuccessor(ctx context.Context, l *peerConn, hi helloHead) {
	log := h.log.With("successor", truncate(hi.Agent))
	log.Info("handover started")
	patience := h.limits.patience
	if hi.PatienceMS > 0 {
		patience = min(time.Duration(min(hi.PatienceMS, maxPatience.Milliseconds()))*time.Millisecond, maxPatience)
	}
	end := time.Now().Add(patience)
	g := giver{conn: l, source: h.source, limits: h.limits, log: h.log, next: func() (messageKind, error) { return nextRequest(l, end) }}
	err := g.awaitCommit(ctx, end)
	if err == nil && !h.compareAndSetPhase(transferring, draining) {
		err = errors.New("this agent has stopped waiting for it")
	}
	if err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(transferring, serving)
		log.Warn("handover failed; this agent keeps serving", "err", err)
		return
	}
	h.suspend(ctx, l, &g, hi)
}

// nextRequest waits for the successor's next request.
func nextRequest(l *peerConn, end time.Time) (messageKind, error) {
	l.setDeadline(end)
	m, err := l.await(kindWantSave, kindWantSockets, kindWantCache, kindWantStatistics, kindCommit)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("it did not commit in time: %w", err)
	}
	m.close()
	return m.kind, err
}

// suspend completes the handover to a successor that has committed. It returns when Serve ends,
// or when this agent serves again.
func (h *Server) suspend(ctx context.Context, l *peerConn, g *giver, hi helloHead) {
	if err := l.sendWithin(h.limits.step, kindCommitted, nil, nil); err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(draining, serving)
		h.log.Warn("the successor has ended; this agent keeps serving", "err", err)
		return
	}
	w := h.watchSuccessor(l, hi)
	h.log.Info("the successor has committed; finishing queries in flight")
	w.conns = g.suspend(ctx, w.ctx)
	h.afterCommit(ctx, l, w)
}

// currentServer returns a connection to the agent that serves at the socket, nil if there is
// none.
func (h *Server) currentServer(ctx context.Context) *peerConn {
	for ctx.Err() == nil && !h.ownsSocket() {
		l, err := dial(h.dir)
		if err != nil || l == nil {
			return nil
		}
		if _, err := l.checkPeer(); err != nil {
			l.close()
			return nil
		}
		hi, err := l.exchangeHello(ctx, h.limits.hello, h.config.helloHead(purposeWatch))
		if err == nil && hi.State != stateYielded {
			return l
		}
		l.close()
		if err != nil && !errors.Is(err, errClosed) {
			return nil
		}
		pause(ctx, retryDelay) // its process is ending, or is about to find its successor dead
	}
	return nil
}
