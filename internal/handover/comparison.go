package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Comparable reports whether the predecessor has statistics, and can take back what it has handed
// over.
func (p *Predecessor) Comparable() bool { return p.hello.Compare }

// Statistics returns the predecessor's [Source.Statistics]. Call it before Commit, and only if p is
// comparable.
func (p *Predecessor) Statistics(ctx context.Context) ([]byte, error) {
	err := p.request(ctx, kindWantStatistics)
	var m message
	if err == nil {
		m, err = p.await(ctx, p.limits.step, kindStatistics)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the running agent's statistics: %w", err)
	}
	m.close()
	return slices.Clone(m.rest), nil
}

// Alive tells the predecessor that this agent works. If it is not told for some seconds, before
// Keep, it resumes.
func (p *Predecessor) Alive() { p.tell(kindAlive) }

// Keep tells the predecessor that this agent has compared itself, and will not give back.
func (p *Predecessor) Keep() { p.tell(kindKept) }

// tell sends a message without content. The predecessor may have ended, which listen notices.
func (p *Predecessor) tell(k messageKind) { _ = p.conn.sendWithin(p.limits.step, k, nil, nil) }

// Resumed returns why the predecessor serves again although this agent has not given back: for
// example, because Alive was not called. "": it does not.
func (p *Predecessor) Resumed() string {
	if reason := p.resumed.Load(); reason != nil {
		return *reason
	}
	return ""
}

func (p *Predecessor) setResumed(m message) {
	var head reasonHead
	if decode(m.kind, m.head, &head) != nil || head.Reason == "" {
		head.Reason = "no reason given"
	}
	reason := truncate(head.Reason)
	p.resumed.Store(&reason)
}

// Return gives everything back to the predecessor, which has to be comparable: the other way round
// than before, source is the agent that gives. It may be called once, after Commit. While it runs,
// this agent accepts no successor ([Server.Stop]). After nil, and after any other error than
// ErrGone, this agent ends: when p is closed, the predecessor serves in any case. ErrGone means
// that the predecessor has ended, and that source serves: Return has called Resume if necessary.
func (p *Predecessor) Return(ctx context.Context, source Source, reason Reason) error {
	ctx, cancel := context.WithTimeout(ctx, p.limits.patience)
	defer cancel()
	head := reasonHead{Reason: truncate(reason.Text), Kinds: reason.Kinds}
	if p.conn.sendWithin(p.limits.step, kindReturn, head, nil) != nil {
		return p.returnFailed(errClosed)
	}
	g := giver{conn: p.conn, source: source, limits: p.limits, log: p.config.logger(), next: func() (messageKind, error) { return p.nextRequest(ctx) }}
	end, _ := ctx.Deadline()
	err := g.awaitCommit(ctx, end)
	if err == nil {
		err = p.conn.sendWithin(p.limits.step, kindCommitted, nil, nil)
	}
	if err != nil {
		return p.returnFailed(err)
	}
	life, ended := context.WithCancel(context.Background())
	defer ended()
	go func() {
		select {
		case <-p.gone:
			ended()
		case <-life.Done():
		}
	}()
	conns := g.suspend(ctx, life)
	// The predecessor closes the connection when it has received everything.
	if !p.waitGone(p.limits.step) || p.Resumed() != "" {
		g.log.Info("everything is given back", "connections", conns)
		return nil
	}
	source.Resume()
	return fmt.Errorf("giving back: %w", ErrGone)
}

// nextRequest returns the next request that listen has received.
func (p *Predecessor) nextRequest(ctx context.Context) (messageKind, error) {
	t := time.NewTimer(p.limits.piece)
	defer t.Stop()
	select {
	case k := <-p.requests:
		return k, nil
	case <-p.gone:
		return 0, errClosed
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-t.C:
		return 0, errors.New("it has stopped responding, but has not ended")
	}
}

// returnFailed returns the error of a Return that has failed before Suspend.
func (p *Predecessor) returnFailed(err error) error {
	if errors.Is(err, errClosed) && p.waitGone(p.limits.step) {
		if reason := p.Resumed(); reason != "" {
			return fmt.Errorf("giving back: the running agent serves again: %s", reason)
		}
		err = ErrGone
	}
	return fmt.Errorf("giving back: %w", err)
}

// waitGone waits until the connection has ended, and reports whether it has.
func (p *Predecessor) waitGone(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.gone:
		return true
	case <-t.C:
		return false
	}
}
