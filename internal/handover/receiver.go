package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// receiver is the side of a handover that receives: the successor, or the server whose
// successor gives back.
type receiver struct {
	conn   *peerConn
	limits timeouts
	// closeOnError closes the connection when r breaks.
	closeOnError bool
	// closed returns what it means that the other end has closed the connection.
	closed func(context.Context) error
	// broken is the error after which nothing more is received.
	broken error
	cache  *stream // nil: none is being read
}

// request sends a message without content.
func (r *receiver) request(ctx context.Context, k messageKind) error {
	if r.cache != nil {
		_ = r.cache.Close()
		r.cache = nil
	}
	if r.broken != nil {
		return r.broken
	}
	defer r.conn.withDeadline(ctx, r.limits.step)()
	if err := r.conn.send(k, nil, nil); err != nil {
		return r.fail(ctx, err)
	}
	return nil
}

// await receives a message of one of kinds. After an error r is broken.
func (r *receiver) await(ctx context.Context, limit time.Duration, kinds ...messageKind) (message, error) {
	if r.broken != nil {
		return message{}, r.broken
	}
	defer r.conn.withDeadline(ctx, limit)()
	m, err := r.conn.await(kinds...)
	if err != nil {
		return message{}, r.fail(ctx, err)
	}
	return m, nil
}

// fail makes r broken, and returns err or what it means.
func (r *receiver) fail(ctx context.Context, err error) error {
	if r.broken != nil {
		return r.broken
	}
	if r.closeOnError {
		r.conn.close()
	}
	switch {
	case errors.Is(err, errClosed):
		err = r.closed(ctx)
	case ctxDone(ctx) != nil:
		err = ctxDone(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("it has stopped responding, but has not ended")
	}
	r.broken = err
	return err
}

// requestCache returns the stream that the other end's [Source.WriteCache] writes.
func (r *receiver) requestCache(ctx context.Context) (io.ReadCloser, error) {
	if err := r.request(ctx, kindWantCache); err != nil {
		return nil, fmt.Errorf("asking for the cache: %w", err)
	}
	r.cache = &stream{from: r, ctx: ctx}
	return r.cache, nil
}

// commit tells the other end that this agent reads, and receives connections until the other end
// has finished.
func (r *receiver) commit(ctx context.Context, take func(Conn)) error {
	if err := r.request(ctx, kindCommit); err != nil {
		return err
	}
	if _, err := r.await(ctx, r.limits.step, kindCommitted); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.limits.drain+r.limits.step)
	defer cancel()
	for {
		m, err := r.await(ctx, r.limits.drain+r.limits.step, kindConnection, kindYielded)
		switch {
		case err != nil:
			return err
		case m.kind == kindYielded:
			m.close()
			return nil
		}
		var from connHead
		if len(m.files) != 1 || decode(m.kind, m.head, &from) != nil {
			m.close() // loses one client's connection, not the handover
			continue
		}
		take(Conn{Addr: from.Addr, Read: append([]byte(nil), m.rest...), File: m.files[0]})
	}
}

// stream is the cache as it arrives.
type stream struct {
	from *receiver
	ctx  context.Context
	rest []byte // aliases the connection's buffer
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

// next returns the next piece, and the error after it.
func (s *stream) next() ([]byte, error) {
	m, err := s.from.await(s.ctx, s.from.limits.piece, kindCache)
	if err != nil {
		return nil, fmt.Errorf("receiving the cache: %w", err)
	}
	m.close()
	var at cacheHead
	if err := decode(m.kind, m.head, &at); err != nil {
		return nil, s.from.fail(s.ctx, err)
	}
	switch {
	case at.Fault != "":
		err = fmt.Errorf("receiving the cache: it reports: %s", truncate(at.Fault))
	case at.End:
		err = io.EOF
	}
	return m.rest, err
}

// Close drops the rest of the stream.
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
