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

// limits are how long the other side may take for a step.
type limits struct {
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
	// yield is for what is under way: a query takes 6 s at most, a TCP connection without
	// one 10 s. More would keep a node's upgrade waiting for one slow client.
	yield time.Duration
	// settle is from then until the successor listens for its own one, which is the next
	// thing it does.
	settle time.Duration
}

func usual() limits {
	return limits{
		hello: 2 * time.Second, step: 5 * time.Second, piece: 10 * time.Second,
		patience: time.Minute, yield: 15 * time.Second, settle: 5 * time.Second,
	}
}

const (
	// longestPatience: a successor that asks for more is not believed. Views of large
	// clusters may be given minutes.
	longestPatience = 10 * time.Minute
	// maxLines are served at a time: one successor, the questions of probes, and agents that
	// wait. Half of it would do; each is a goroutine and 100 KiB.
	maxLines = 16
	// again is the pause before something is tried again that somebody else is in the way
	// of. Half would be as good.
	again = 100 * time.Millisecond
)

// phase is where a host is.
type phase int

const (
	serving  phase = iota // in charge, alone
	giving                // in charge, a successor is at work
	yielding              // the successor has committed
	done                  // the successor has all
)

// Stats are a host's counts.
type Stats struct {
	// Completed hand-overs, Failed ones (before the commit, so nothing has happened), and
	// Resumed ones, which had been committed.
	Completed, Failed, Resumed uint64
}

// Host is the running agent's side: it waits for a successor. Its methods are safe for
// concurrent use.
type Host struct {
	dir    string
	estate Estate
	config Config
	log    *slog.Logger
	limits limits

	completed, failed, resumed atomic.Uint64

	finished chan struct{}
	finish   sync.Once

	lines   chan struct{} // one token for each line
	running sync.WaitGroup

	mu       sync.Mutex
	serve    context.Context // Serve's, for the listeners to come
	listener *net.UnixListener
	own      os.FileInfo // of the listener's socket
	phase    phase
	changed  chan struct{} // closed and made anew at each change of phase
	heir     *line         // the successor's while giving
	stopping bool
	left     bool // Stop has said that the successor is in charge
}

// Listen makes the socket in dir, in place of one that is there; dir is made if need be.
// The caller calls Serve next. The errors name -handover-dir and what to do.
func Listen(dir string, estate Estate, c Config) (*Host, error) {
	l, info, err := place(dir)
	if err != nil {
		return nil, err
	}
	return &Host{
		dir: dir, estate: estate, config: c, log: c.logger(), limits: usual(),
		finished: make(chan struct{}), changed: make(chan struct{}), lines: make(chan struct{}, maxLines),
		listener: l, own: info,
	}, nil
}

// Serve hands over to those who ask, one at a time, until ctx is done, which should be at
// the end of the process: that it is going to end, Stop says. After that nothing of
// the Host is running. A successor that has committed stays in charge.
func (h *Host) Serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.mu.Lock()
	h.serve = ctx
	h.accept()
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	_ = h.listener.Close()
	h.mu.Unlock()
	h.running.Wait()
}

// Yielded reports whether a successor is in charge: from its commit on, for as long as it
// lives.
func (h *Host) Yielded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase >= yielding
}

// Done is closed when a successor has taken over everything and waits for one of its own. An
// agent that nobody starts anew ends then. It stays closed if the successor dies later.
func (h *Host) Done() <-chan struct{} { return h.finished }

// Stats gives the counts so far.
func (h *Host) Stats() Stats {
	return Stats{Completed: h.completed.Load(), Failed: h.failed.Load(), Resumed: h.resumed.Load()}
}

// Stop says that this agent is going to end. From here on no hand-over begins: those who
// connect wait for the process's end. One that is under way is waited for until ctx is done, and
// broken off then if the successor has not committed. The result is true if a successor
// is in charge: it has everything, or ctx is done. The agent ends without a teardown
// then, and without Resume. Else it stops as usual, and ends Serve last.
func (h *Host) Stop(ctx context.Context) (yielded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
	for h.phase == giving || h.phase == yielding {
		changed := h.changed
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
	if h.phase == giving {
		h.heir.close()
		h.become(serving)
	}
	h.left = h.phase != serving
	return h.left
}

// become sets the phase. The caller holds mu.
func (h *Host) become(p phase) {
	h.phase = p
	close(h.changed)
	h.changed = make(chan struct{})
}

// advance sets the phase if it is from.
func (h *Host) advance(from, to phase) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != from {
		return false
	}
	h.become(to)
	return true
}

// accept starts to accept at the listener there is. The caller holds mu.
func (h *Host) accept() {
	l, ctx := h.listener, h.serve
	h.running.Go(func() {
		for ctx.Err() == nil {
			conn, err := l.AcceptUnix()
			switch {
			case err == nil:
				h.welcome(ctx, conn)
			case errors.Is(err, net.ErrClosed):
				return
			default: // no more files, say
				pause(ctx, again)
			}
		}
	})
}

// welcome serves conn on a goroutine of its own, if there is room.
func (h *Host) welcome(ctx context.Context, conn *net.UnixConn) {
	select {
	case h.lines <- struct{}{}:
	default:
		_ = conn.Close() // they come again
		return
	}
	h.running.Go(func() {
		defer func() { <-h.lines }()
		l := newLine(conn)
		defer l.close()
		stop := context.AfterFunc(ctx, l.close)
		defer stop()
		h.meet(ctx, l)
	})
}

// meet finds out what the other end wants, and does it.
func (h *Host) meet(ctx context.Context, l *line) {
	who, err := l.trusted()
	if err != nil {
		h.log.Warn("hand-over refused", "err", err)
		return
	}
	l.until(time.Now().Add(h.limits.hello))
	hi, err := l.greeted()
	if err != nil {
		h.log.Debug("somebody connected for a hand-over and did not say hello", "pid", who.Pid, "err", err)
		return
	}
	switch hi.Purpose {
	case query:
		_ = l.send(hello, h.greeting(h.state()), nil)
	case watch:
		if l.send(hello, h.greeting(h.state()), nil) == nil {
			h.hold(l)
		}
	case takeover, "":
		h.succession(ctx, l, hi)
	}
}

// greeted receives the hello, which is the first message in every version.
func (l *line) greeted() (greeting, error) {
	m, err := l.receive()
	if err != nil {
		return greeting{}, err
	}
	m.drop()
	if m.kind != hello {
		return greeting{}, fmt.Errorf("%w of kind %d instead of hello", errMalformed, m.kind)
	}
	var hi greeting
	err = decode(m.kind, m.head, &hi)
	return hi, err
}

// greeting is this host's hello.
func (h *Host) greeting(state string) greeting {
	hi := greeting{Min: minVersion, Max: maxVersion, Agent: h.config.Version, State: state, Ready: true}
	if state == stateYielded {
		hi.Ready, hi.Reason = false, "it has handed over to another agent"
	} else if h.config.Ready != nil {
		if err := h.config.Ready(); err != nil {
			hi.Ready, hi.Reason = false, clip(err.Error())
		}
	}
	return hi
}

func (h *Host) state() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.phase >= yielding:
		return stateYielded
	case h.stopping:
		return stateStopping
	}
	return stateOK
}

// hold keeps the line until the other side ends it, or Serve.
func (h *Host) hold(l *line) {
	l.until(time.Time{})
	_ = l.drain()
}

// renew listens again if somebody else has taken the name since.
func (h *Host) renew() {
	if h.mine() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serve.Err() != nil {
		return
	}
	l, info, err := place(h.dir)
	if err != nil {
		h.log.Error("no further agent can take over from this one", "err", err)
		return
	}
	_ = h.listener.Close()
	h.listener, h.own = l, info
	h.accept()
}

// mine reports whether the socket that others find is this host's.
func (h *Host) mine() bool {
	now, err := os.Lstat(filepath.Join(h.dir, SocketName))
	h.mu.Lock()
	defer h.mu.Unlock()
	return err == nil && os.SameFile(now, h.own)
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
