package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// maxSockets a predecessor may have in all: eight addresses on a node of 256 cores, with
// TCP and health in proportion. More is a predecessor gone wrong.
const maxSockets = 4096

// Predecessor is the successor's side of a hand-over. Its methods are called one after the
// other, Gone and Close excepted.
type Predecessor struct {
	conn   *peerConn
	dir    string
	config Config
	limits timeouts
	gone   chan struct{}
	// broken is why nothing more can be asked for.
	broken error
	cache  *stream // not read to its end
}

// Connect finds the agent that runs at dir. Nobody, or no dir: nil, without an error. While it is busy with
// another successor, or stopping, or speaks no common version, Connect waits for what comes
// of it, until ctx is done; then the error is ErrBusy or ErrVersion. Other errors say
// that somebody is there who can't be dealt with: who hangs, or is somebody else's;
// ErrFolder, that anybody could be.
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
	f.close() // who is met there says itself whose process it is
	a := attempt{dir: dir, config: c, limits: limits, log: c.logger(), reason: errNoReply}
	for {
		p, err := a.try(ctx)
		if p != nil || err == nil || !errors.Is(err, errAgain) {
			return p, err
		}
		pause(ctx, retryDelay)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("-handover-dir %s: %w (%w)", dir, a.reason, ctx.Err())
		}
	}
}

var (
	// errAgain: not now.
	errAgain = errors.New("not now")
	// errNoReply: there was no time to hear more.
	errNoReply = errors.New("the running agent has not answered")
)

// attempt is one Connect.
type attempt struct {
	dir    string
	config Config
	limits timeouts
	log    *slog.Logger
	// reason is what is waited for.
	reason error
	// state has been logged.
	state string
}

// try connects once. errAgain: it should be tried again.
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
		return nil, fmt.Errorf("-handover-dir %s: %w", a.dir, err)
	}
	hi, err := l.exchangeHello(ctx, a.limits.hello, a.config.helloHead(purposeTakeover))
	if errors.Is(err, errClosed) || err != nil && ctxDone(ctx) != nil {
		err = errAgain // it ends, or has no room; or it is this agent that has no time
	} else if err != nil {
		err = fmt.Errorf("-handover-dir %s: the agent there (pid %d) does not answer, so nothing can be taken over from it: %w", a.dir, who.Pid, err)
	}
	return a.result(ctx, l, who.Pid, hi, err)
}

// result is what comes of a hello to l, or err in its place.
func (a *attempt) result(ctx context.Context, l *peerConn, pid int32, hi helloHead, err error) (*Predecessor, error) {
	if err == nil && hi.commonVersion() != 0 && hi.State == stateOK {
		a.log.Info("taking over from the agent that runs", "its_version", truncate(hi.Agent), "pid", pid)
		return &Predecessor{conn: l, dir: a.dir, config: a.config, limits: a.limits, gone: make(chan struct{})}, nil
	}
	defer l.close()
	if err != nil {
		return nil, err
	}
	return nil, a.waitUnavailable(ctx, l, hi)
}

// waitUnavailable waits for what comes of an agent that does not hand over now.
func (a *attempt) waitUnavailable(ctx context.Context, l *peerConn, hi helloHead) error {
	state := hi.State
	a.reason = ErrBusy
	if hi.commonVersion() == 0 {
		state, a.reason = "version", ErrVersion
	}
	if state != a.state {
		a.state = state
		a.log.Warn("can't take over from the running agent yet; waiting", "state", truncate(state), "its_version", truncate(hi.Agent),
			"its_protocols", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "protocols", fmt.Sprintf("%d-%d", minVersion, maxVersion))
	}
	if state == "version" || state == stateStopping {
		l.waitClosed(ctx)
	}
	return errAgain
}

// waitClosed waits until the line ends, or ctx is done.
func (l *peerConn) waitClosed(ctx context.Context) {
	l.setDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { l.setDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = l.drain()
}

// ctxDone is ctx's error, also if its deadline has passed and nobody has told it yet: a
// connection's deadline may be faster.
func ctxDone(ctx context.Context) error {
	if end, set := ctx.Deadline(); set && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// helloHead is the successor's hello.
func (c Config) helloHead(purpose string) helloHead {
	return helloHead{Min: minVersion, Max: maxVersion, Agent: c.Version, Purpose: purpose, PatienceMS: c.Patience.Milliseconds()}
}

// exchangeHello says hi and gives the other end's answer.
func (l *peerConn) exchangeHello(ctx context.Context, limit time.Duration, hi helloHead) (helloHead, error) {
	defer l.withDeadline(ctx, limit)()
	if err := l.send(kindHello, hi, nil); err != nil {
		return helloHead{}, err
	}
	return l.receiveHello()
}

// Sockets are what the predecessor listens with; the caller closes them. Without an
// error they are all of them.
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

// receiveSockets receives one message of them.
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

// Cache is the stream that the predecessor's [Source.WriteCache] writes. It must be read to its
// end or closed before the next call, while ctx lives. Reading ends with an error of
// the predecessor's, or ErrGone; what has been read is whole pieces of what was written.
func (p *Predecessor) Cache(ctx context.Context) (io.ReadCloser, error) {
	if err := p.request(ctx, kindWantCache); err != nil {
		return nil, fmt.Errorf("asking for the running agent's cache: %w", err)
	}
	p.cache = &stream{p: p, ctx: ctx}
	return p.cache, nil
}

// stream is the cache as it arrives.
type stream struct {
	p    *Predecessor
	ctx  context.Context
	rest []byte // of the line's buffer
	err  error
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 && s.err == nil {
		s.rest, s.err = s.next()
	}
	if len(s.rest) > 0 {
		n := copy(b, s.rest)
		s.rest = s.rest[n:]
		return n, nil
	}
	return 0, s.err
}

// next gives the next piece, and the error behind it.
func (s *stream) next() ([]byte, error) {
	m, err := s.p.await(s.ctx, s.p.limits.piece, kindCache)
	if err != nil {
		return nil, fmt.Errorf("taking over the running agent's cache: %w", err)
	}
	m.close()
	var at cacheHead
	if err := decode(m.kind, m.head, &at); err != nil {
		return nil, s.p.fail(s.ctx, err)
	}
	switch {
	case at.Fault != "":
		err = fmt.Errorf("taking over the running agent's cache: it reports: %s", truncate(at.Fault))
	case at.End:
		err = io.EOF
	}
	return m.rest, err
}

// Close reads the rest and drops it.
func (s *stream) Close() error {
	s.rest = nil
	for s.err == nil {
		_, s.err = s.next()
	}
	if errors.Is(s.err, io.EOF) {
		return nil
	}
	return s.err
}

// Commit says that this agent reads from the sockets now. Each connection that the predecessor
// passes is given to take, one after the other, on this goroutine. Commit returns
// when the predecessor has finished all that was under way, 20 s at most after it has
// stopped reading; or when it has ended, which is no error. An error says that it
// lives and goes on, or will when this agent closes p.
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
	go func() {
		defer close(p.gone)
		defer p.conn.close()
		_ = p.conn.drain()
	}()
	return nil
}

func (p *Predecessor) commit(ctx context.Context, take func(Conn)) error {
	if err := p.request(ctx, kindCommit); err != nil {
		return err
	}
	if _, err := p.await(ctx, p.limits.step, kindCommitted); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limits.drain+p.limits.step)
	defer cancel()
	for {
		m, err := p.await(ctx, p.limits.drain+p.limits.step, kindConnection, kindYielded)
		switch {
		case err != nil:
			return err
		case m.kind == kindYielded:
			m.close()
			return nil
		}
		var from connHead
		if len(m.files) != 1 || decode(m.kind, m.head, &from) != nil {
			m.close() // one client's loss; breaking off would be everybody's
			continue
		}
		take(Conn{Addr: from.Addr, Read: append([]byte(nil), m.rest...), File: m.files[0]})
	}
}

// Settled says that this agent waits for a successor of its own now (see [Listen]). The
// predecessor may end from then on; it waits for it for some seconds.
func (p *Predecessor) Settled() {
	_ = p.conn.sendWithin(p.limits.step, kindSettled, nil, nil) // if it is gone it need not know
}

// Gone is closed, after a Commit without an error, when the predecessor has ended.
func (p *Predecessor) Gone() <-chan struct{} { return p.gone }

// Close ends the hand-over. Before Commit it leaves everything to the predecessor; after
// it, the predecessor goes back to work if it still lives. So it should stay open for as long
// as this agent does.
func (p *Predecessor) Close() error { return p.conn.unixConn.Close() }

// request sends a request.
func (p *Predecessor) request(ctx context.Context, k messageKind) error {
	if p.cache != nil {
		_ = p.cache.Close()
		p.cache = nil
	}
	if p.broken != nil {
		return p.broken
	}
	defer p.conn.withDeadline(ctx, p.limits.step)()
	if err := p.conn.send(k, nil, nil); err != nil {
		return p.fail(ctx, err)
	}
	return nil
}

// await receives a message of one of kinds. After an error nothing more can be asked for.
func (p *Predecessor) await(ctx context.Context, limit time.Duration, kinds ...messageKind) (message, error) {
	if p.broken != nil {
		return message{}, p.broken
	}
	defer p.conn.withDeadline(ctx, limit)()
	m, err := p.conn.await(kinds...)
	if err != nil {
		return message{}, p.fail(ctx, err)
	}
	return m, nil
}

// fail closes the line and says what has happened: whether the predecessor lives.
func (p *Predecessor) fail(ctx context.Context, err error) error {
	if p.broken != nil {
		return p.broken
	}
	p.conn.close()
	switch {
	case errors.Is(err, errClosed):
		err = p.checkPredecessor(ctx)
	case ctxDone(ctx) != nil:
		err = ctxDone(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("it does not go on, though it has not ended")
	}
	p.broken = err
	return err
}

// checkPredecessor finds out whether the predecessor has ended, or has just broken off. If it is
// stopping, its end is waited for.
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

// checkOnce looks once. errAgain: it can't be told yet.
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
		return fmt.Errorf("it has broken off the hand-over, and does not answer: %w", err)
	case hi.State == stateStopping:
		l.waitClosed(ctx)
		return errAgain
	}
	return errors.New("it has broken off the hand-over, and goes on")
}
