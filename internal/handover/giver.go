package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// giver is the side of a handover that gives: the server, or a successor that gives back.
type giver struct {
	conn   *peerConn
	source Source
	limits timeouts
	log    *slog.Logger
	// next returns the next request of the other end.
	next func() (messageKind, error)
}

// awaitCommit serves the other end's requests until it commits, or until end.
func (g *giver) awaitCommit(ctx context.Context, end time.Time) error {
	for range maxSkipped {
		kind, err := g.next()
		if err != nil {
			return err
		}
		switch kind {
		case kindWantSave:
			err = g.save()
		case kindWantSockets:
			err = g.sendSockets()
		case kindWantCache:
			err = g.sendCache(ctx, end)
		case kindWantStatistics:
			err = g.sendStatistics()
		case kindCommit:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("it sent %d requests", maxSkipped)
}

// save makes the source write its files. The other end does not wait for a slow disk.
func (g *giver) save() error {
	done := make(chan struct{})
	go func() { g.source.Save(); close(done) }()
	select {
	case <-done:
	case <-time.After(g.limits.step):
		g.log.Warn("saving for the successor takes long; it starts from older files", "limit", g.limits.step)
	}
	return g.conn.sendWithin(g.limits.step, kindSaved, nil, nil)
}

func (g *giver) sendSockets() error {
	all, err := g.source.Sockets()
	defer func() {
		for _, s := range all {
			s.File.Close()
		}
	}()
	if err != nil {
		g.log.Warn("handing over the sockets failed", "err", err)
		return g.conn.sendWithin(g.limits.step, kindSockets, socketsHead{Fault: truncate(err.Error())}, nil)
	}
	for rest := all; ; {
		n := min(len(rest), maxFiles)
		list := socketsHead{Sockets: make([]socketInfo, n), More: len(rest) > n}
		files := make([]*os.File, n)
		for i, s := range rest[:n] {
			list.Sockets[i] = socketInfo{Role: s.Role, Addr: s.Addr}
			files[i] = s.File
		}
		rest = rest[n:]
		if err := g.conn.sendWithin(g.limits.step, kindSockets, list, nil, files...); err != nil {
			return fmt.Errorf("handing over sockets: %w", err)
		}
		if !list.More {
			return nil
		}
	}
}

// sendCache sends the cache in pieces.
func (g *giver) sendCache(ctx context.Context, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	w := &cacheWriter{conn: g.conn, limit: g.limits.piece, buf: make([]byte, 0, cachePieceSize)}
	last := cacheHead{End: true}
	err := g.source.WriteCache(ctx, w)
	if w.err == nil && err != nil {
		g.log.Warn("the cache is handed over in part", "err", err)
		last.Fault = truncate(err.Error())
	}
	if w.err == nil {
		w.err = g.conn.sendWithin(g.limits.piece, kindCache, last, w.buf)
	}
	if w.err != nil {
		return fmt.Errorf("handing over the cache: %w", w.err)
	}
	return nil
}

// sendStatistics sends the statistics, without contents if they are too long.
func (g *giver) sendStatistics() error {
	text := g.source.Statistics()
	if len(text) > maxRest {
		g.log.Warn("the statistics are too long; the successor has nothing to compare itself with", "max", maxRest)
		text = nil
	}
	if err := g.conn.sendWithin(g.limits.step, kindStatistics, nil, text); err != nil {
		return fmt.Errorf("handing over the statistics: %w", err)
	}
	return nil
}

// suspend suspends the source, passes its connections on, and sends yielded. It returns the number
// of connections. peer is done when the other end has ended.
func (g *giver) suspend(ctx, peer context.Context) (conns int) {
	yctx, cancel := context.WithTimeout(ctx, g.limits.drain)
	stop := context.AfterFunc(peer, cancel)
	p := connSender{line: g.conn, limit: g.limits.step}
	err := g.source.Suspend(yctx, p.send)
	p.close()
	stop()
	cancel()
	var last cacheHead
	if err != nil {
		last.Fault = truncate(err.Error())
	}
	if err != nil && peer.Err() == nil {
		g.log.Warn("queries were still in flight at the end of the handover", "err", err)
	}
	_ = g.conn.sendWithin(g.limits.step, kindYielded, last, nil) // if the other end has ended, peer is done
	return p.sent
}

// cacheWriter is an [io.Writer] that sends what is written to it in pieces.
type cacheWriter struct {
	conn  *peerConn
	limit time.Duration
	buf   []byte
	err   error
}

func (p *cacheWriter) Write(b []byte) (n int, err error) {
	for p.err == nil && len(b) > 0 {
		fits := min(len(b), cachePieceSize-len(p.buf))
		p.buf = append(p.buf, b[:fits]...)
		b, n = b[fits:], n+fits
		if len(p.buf) == cachePieceSize {
			p.err = p.conn.sendWithin(p.limit, kindCache, nil, p.buf)
			p.buf = p.buf[:0]
		}
	}
	return n, p.err
}

// errOver: a connection was passed after Suspend had returned.
var errOver = errors.New("the handover is over")

// connSender sends connections to the other end until it is closed.
type connSender struct {
	line  *peerConn
	limit time.Duration

	mu     sync.Mutex
	closed bool
	sent   int
}

func (p *connSender) send(c Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errOver
	}
	if err := p.line.sendWithin(p.limit, kindConnection, connHead{Addr: c.Addr}, c.Read, c.File); err != nil {
		return fmt.Errorf("passing a connection: %w", err)
	}
	p.sent++
	return nil
}

func (p *connSender) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}
