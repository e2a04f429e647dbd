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
func (f *frameReader) next() (msg []byte, ok bool) {
	if f.to-f.from < 2 {
		return nil, false
	}
	end := f.from + 2 + int(binary.BigEndian.Uint16(f.buf[f.from:]))
	if f.to < end {
		return nil, false
	}
	msg = f.buf[f.from+2 : end]
	f.from = end
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
func (f *frameReader) grow() {
	left := f.buf[f.from:f.to]
	need := readBufSize
	if len(left) >= 2 {
		need = max(need, 2+int(binary.BigEndian.Uint16(left)))
	}
	if need > len(f.buf) || len(f.buf) > maxKeptBuffer && need <= maxKeptBuffer {
		f.buf = append(make([]byte, 0, need), left...)[:need]
	} else {
		copy(f.buf, left)
	}
	f.from, f.to = 0, len(left)
}

// atBoundary reports whether the last byte read ends a message.
func (f *frameReader) atBoundary() bool {
	at := f.from
	for f.to-at >= 2 {
		at += 2 + int(binary.BigEndian.Uint16(f.buf[at:]))
	}
	return at == f.to
}
