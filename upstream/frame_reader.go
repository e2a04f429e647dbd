package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
)

// readBufSize is the buffer that a connection's messages are read into: thirty usual
// ones. Double would be held by every connection for bursts; half would read twice
// as often in those.
const readBufSize = 4096

// frameReader cuts what a stream carries into messages, each behind its length (RFC
// 1035, 4.2.2). It grows to the longest there are, 64 KiB, and shrinks again.
type frameReader struct {
	buf      []byte
	from, to int // what is read and not given out
}

// next gives the next message, valid until fill; false if no whole one is there.
func (r *frameReader) next() (msg []byte, ok bool) {
	if r.to-r.from < 2 {
		return nil, false
	}
	end := r.from + 2 + int(binary.BigEndian.Uint16(r.buf[r.from:]))
	if r.to < end {
		return nil, false
	}
	msg = r.buf[r.from+2 : end]
	r.from = end
	return msg, true
}

// fill reads from r what there is, and blocks until there is something. Messages are
// given out first. An error comes with what was read before it, which may hold
// messages.
func (f *frameReader) fill(r io.Reader) error {
	f.grow()
	n, err := r.Read(f.buf[f.to:])
	f.to += n
	switch {
	case err == nil:
		return nil
	case err != io.EOF:
		return err
	case f.atBoundary():
		return fmt.Errorf("the server closed the connection: %w", err)
	}
	return fmt.Errorf("the server closed the connection inside a message: %w", io.ErrUnexpectedEOF)
}

// grow leaves place for the rest of a message, or for many short ones.
func (r *frameReader) grow() {
	left := r.buf[r.from:r.to]
	need := readBufSize
	if len(left) >= 2 {
		need = max(need, 2+int(binary.BigEndian.Uint16(left)))
	}
	if need > len(r.buf) || len(r.buf) > maxKeptBuffer && need <= maxKeptBuffer {
		r.buf = append(make([]byte, 0, need), left...)[:need]
	} else {
		copy(r.buf, left)
	}
	r.from, r.to = 0, len(left)
}

// atBoundary reports whether the last byte read ends a message.
func (r *frameReader) atBoundary() bool {
	at := r.from
	for r.to-at >= 2 {
		at += 2 + int(binary.BigEndian.Uint16(r.buf[at:]))
	}
	return at == r.to
}
