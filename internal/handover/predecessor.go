package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"
)

// maxSockets bounds the sockets of a predecessor: eight addresses on a node of 256 cores have
// about half as many.
const maxSockets = 4096

// Predecessor is the successor's side of a handover. Only Gone and Close are safe for concurrent
// use with the other methods.
type Predecessor struct {
	receiver
	dir    string
	config Config
	hello  helloHead // the running agent's
	gone   chan struct{}
	// requests are the predecessor's while this agent gives back.
	requests chan messageKind
	// resumed is why the predecessor serves again, once it has said so; before gone is closed.
	resumed atomic.Pointer[string]
}

// Connect connects to the agent that runs at dir. It returns nil without an error if there is
// no agent, or no dir. While the agent is busy with another successor, or stopping, or speaks
// no common version, Connect waits until ctx is done; then the error is ErrBusy or ErrVersion.
// ErrFolder means that dir is not safe. Other errors mean that an agent is there and does not
// answer, or belongs to another user.
func Connect(ctx context.Context, dir string, c Config) (*Predecessor, error) {
	return connect(ctx, dir, c, defaultTimeouts())
}

func connect(ctx context.Context, dir string, c Config, limits timeouts) (*Predecessor, error) {
	f, err := openSocketDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	f.close() // the peer credentials tell whose process listens there
	a := attempt{dir: dir, config: c, limits: limits, log: c.logger(), reason: errNoReply}
	for {
		p, err := a.try(ctx)
		if p != nil || err == nil || !errors.Is(err, errAgain) {
			return p, err
		}
		pause(ctx, retryDelay)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("--handover-dir %s: %w (%w)", dir, a.reason, ctx.Err())
		}
	}
}

var (
	// errAgain: the step should be tried again.
	errAgain = errors.New("not now")
	// errNoReply: ctx was done before the agent replied.
	errNoReply = errors.New("the running agent has not answered")
)

// attempt is the state of a Connect.
type attempt struct {
	dir    string
	config Config
	limits timeouts
	log    *slog.Logger
	// reason is what Connect waits for.
	reason error
	// state is the last one logged.
	state string
}

// try connects once. It may return errAgain.
func (a *attempt) try(ctx context.Context) (*Predecessor, error) {
	l, err := dial(a.dir)
	if errors.Is(err, errBacklogFull) {
		a.reason = ErrBusy
		return nil, errAgain
	}
	if l == nil || err != nil {
		return nil, err
	}
	who, err := l.checkPeer()
	if err != nil {
		l.close()
		return nil, fmt.Errorf("--handover-dir %s: %w", a.dir, err)
	}
	hi, err := l.exchangeHello(ctx, a.limits.hello, a.config.helloHead(purposeTakeover))
	if errors.Is(err, errClosed) || err != nil && ctxDone(ctx) != nil {
		err = errAgain // the agent ends, or has no free connection, or ctx is done
	} else if err != nil {
		err = fmt.Errorf("--handover-dir %s: the agent there (pid %d) does not answer, and cannot hand over: %w", a.dir, who.Pid, err)
	}
	return a.result(ctx, l, who.Pid, hi, err)
}

func newPredecessor(l *peerConn, a *attempt, hi helloHead) *Predecessor {
	p := &Predecessor{
		receiver: receiver{conn: l, limits: a.limits, closeOnError: true},
		dir:      a.dir, config: a.config, hello: hi, gone: make(chan struct{}), requests: make(chan messageKind, 1),
	}
	p.closed = p.checkPredecessor
	return p
}

// result returns the predecessor, given its hello, or the error in its place.
func (a *attempt) result(ctx context.Context, l *peerConn, pid int32, hi helloHead, err error) (*Predecessor, error) {
	if err == nil && hi.commonVersion() != 0 && hi.State == stateOK {
		a.log.Info("taking over from the running agent", "its_version", truncate(hi.Agent), "pid", pid)
		return newPredecessor(l, a, hi), nil
	}
	defer l.close()
	if err != nil {
		return nil, err
	}
	return nil, a.waitUnavailable(ctx, l, hi)
}

// waitUnavailable waits for an agent that does not hand over now, and returns errAgain.
func (a *attempt) waitUnavailable(ctx context.Context, l *peerConn, hi helloHead) error {
	state := hi.State
	if state == stateRefused {
		return fmt.Errorf("%w: %s", ErrRefused, truncate(hi.Reason))
	}
	a.reason = ErrBusy
	if hi.commonVersion() == 0 {
		state, a.reason = "version", ErrVersion
	}
	if state != a.state {
		a.state = state
		a.log.Warn("waiting for the running agent", "state", truncate(state), "its_version", truncate(hi.Agent),
			"its_protocols", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "protocols", fmt.Sprintf("%d-%d", minVersion, maxVersion))
	}
	if state == "version" || state == stateStopping {
		l.waitClosed(ctx)
	}
	return errAgain
}

// ctxDone returns ctx's error. It also compares the deadline with the clock, because a
// connection's deadline may fire before ctx's.
func ctxDone(ctx context.Context) error {
	if end, set := ctx.Deadline(); set && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// helloHead returns the successor's hello.
func (c Config) helloHead(purpose string) helloHead {
	return helloHead{
		Min: minVersion, Max: maxVersion, Agent: c.Version, Purpose: purpose, PatienceMS: c.Patience.Milliseconds(),
		Compare: c.Compare, Identity: c.Identity,
	}
}

// Recent returns the times of the last handovers on this node, without this one. Agents before 0.2 don't tell them.
func (p *Predecessor) Recent() (list []time.Time) {
	for _, t := range p.hello.Recent[:min(len(p.hello.Recent), maxRecent)] {
		list = append(list, time.Unix(t, 0))
	}
	return list
}

// Save makes the predecessor write its files, which a successor reads. It returns when they are written, or after some
// seconds. An agent that can't is not asked.
func (p *Predecessor) Save(ctx context.Context) error {
	if !p.hello.Saves {
		return nil
	}
	if err := p.request(ctx, kindWantSave); err != nil {
		return fmt.Errorf("asking the running agent to save: %w", err)
	}
	m, err := p.await(ctx, p.limits.piece, kindSaved)
	if err != nil {
		return fmt.Errorf("waiting for the running agent to save: %w", err)
	}
	m.close()
	return nil
}

// Sockets returns all sockets of the predecessor; the caller closes them.
func (p *Predecessor) Sockets(ctx context.Context) ([]Socket, error) {
	if err := p.request(ctx, kindWantSockets); err != nil {
		return nil, fmt.Errorf("asking for the running agent's sockets: %w", err)
	}
	var all []Socket
	for {
		some, more, err := p.receiveSockets(ctx)
		all = append(all, some...)
		if err == nil && len(all) > maxSockets {
			err = p.fail(ctx, fmt.Errorf("%w: more than %d sockets", errMalformed, maxSockets))
		}
		if err != nil {
			for _, s := range all {
				s.File.Close()
			}
			return nil, fmt.Errorf("taking over the running agent's sockets: %w", err)
		}
		if !more {
			return all, nil
		}
	}
}

// receiveSockets receives one message with sockets.
func (p *Predecessor) receiveSockets(ctx context.Context) (some []Socket, more bool, err error) {
	m, err := p.await(ctx, p.limits.step, kindSockets)
	if err != nil {
		return nil, false, err
	}
	var list socketsHead
	err = decode(m.kind, m.head, &list)
	if err == nil && (len(list.Sockets) != len(m.files) || list.More && len(m.files) == 0) {
		err = fmt.Errorf("%w: %d sockets by name, %d files", errMalformed, len(list.Sockets), len(m.files))
	}
	if err != nil {
		m.close()
		return nil, false, p.fail(ctx, err)
	}
	if list.Fault != "" {
		m.close()
		return nil, false, fmt.Errorf("it reports: %s", truncate(list.Fault))
	}
	for i, s := range list.Sockets {
		some = append(some, Socket{Role: s.Role, Addr: s.Addr, File: m.files[i]})
	}
	return some, list.More, nil
}

// Cache returns the stream that the predecessor's [Source.WriteCache] writes. Read it to its end
// or close it before the next call and before ctx is done. Reading fails with the
// predecessor's error or with ErrGone; what was read before is valid.
func (p *Predecessor) Cache(ctx context.Context) (io.ReadCloser, error) {
	stream, err := p.requestCache(ctx)
	if err != nil {
		return nil, fmt.Errorf("taking over from the running agent: %w", err)
	}
	return stream, nil
}

// Commit tells the predecessor that this agent reads from the sockets now. It calls take for
// each connection that the predecessor passes, on this goroutine; take owns the file. Commit
// returns when the predecessor has finished its queries in flight, 20 s at most after it has
// stopped reading, or when it has ended, which is no error. After an error the predecessor
// keeps serving, or resumes when this agent closes p.
func (p *Predecessor) Commit(ctx context.Context, take func(Conn)) error {
	err := p.commit(ctx, take)
	if errors.Is(err, ErrGone) {
		close(p.gone)
		return nil
	}
	if err != nil {
		return fmt.Errorf("taking over from the running agent: %w", err)
	}
	p.conn.setDeadline(time.Time{})
	go p.listen()
	return nil
}

// listen receives what the predecessor sends after Commit, until the connection ends.
func (p *Predecessor) listen() {
	defer close(p.gone)
	defer p.conn.close()
	for {
		m, err := p.conn.receive()
		m.close()
		switch {
		case errors.Is(err, errMalformed): // like an unknown kind
		case err != nil:
			return
		case m.kind == kindResumed:
			p.setResumed(m)
		case m.kind == kindWantCache || m.kind == kindCommit:
			select {
			case p.requests <- m.kind:
			default: // it sends one at a time
			}
		}
	}
}

// Settled tells the predecessor that this agent waits for its own successor now (see [Listen]).
// The predecessor waits some seconds for it before it ends.
func (p *Predecessor) Settled() {
	_ = p.conn.sendWithin(p.limits.step, kindSettled, nil, nil) // it may have ended
}

// Gone returns a channel that is closed when the predecessor has ended, or serves again (see
// [Predecessor.Resumed]), after a successful Commit.
func (p *Predecessor) Gone() <-chan struct{} { return p.gone }

// Close ends the handover. Before Commit it leaves everything to the predecessor; after Commit
// the predecessor resumes if it still lives. So p should stay open while this agent serves.
func (p *Predecessor) Close() error { return p.conn.unixConn.Close() }

// checkPredecessor returns ErrGone if the predecessor has ended, and another error if it has
// only closed the connection. It waits for the end of a predecessor that is stopping.
func (p *Predecessor) checkPredecessor(ctx context.Context) error {
	for {
		err := p.checkOnce(ctx)
		if !errors.Is(err, errAgain) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the running agent's end: %w", ctx.Err())
		}
		pause(ctx, retryDelay/10)
	}
}

// checkOnce is one check. errAgain: it is not known yet.
func (p *Predecessor) checkOnce(ctx context.Context) error {
	l, err := dial(p.dir)
	switch {
	case errors.Is(err, errBacklogFull):
		return errAgain
	case err != nil:
		return err
	case l == nil:
		return ErrGone
	}
	defer l.close()
	hi, err := l.exchangeHello(ctx, p.limits.hello, p.config.helloHead(purposeWatch))
	switch {
	case errors.Is(err, errClosed): // its process is ending
		return errAgain
	case err != nil:
		return fmt.Errorf("it has closed the connection and does not answer: %w", err)
	case hi.State == stateStopping:
		l.waitClosed(ctx)
		return errAgain
	}
	return errors.New("it has closed the connection and keeps serving")
}
