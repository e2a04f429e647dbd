package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
)

// readBufSize is the size of a connection's read buffer, in bytes: about thirty ordinary
// messages.
const readBufSize = 4096

// frameReader splits a TCP stream into messages, each preceded by its length (RFC 1035,
// 4.2.2). Its buffer grows to the largest message, 64 KiB at most, and shrinks again.
type frameReader struct {
	buf      []byte
	from, to int // unread part of buf
}

// frameLen returns the length of the first message of b with its prefix.
func frameLen(b []byte) int { return 2 + int(binary.BigEndian.Uint16(b)) }

// next returns the next message, valid until fill; false if none is complete.
func (r *frameReader) next() (msg []byte, ok bool) {
	if r.to-r.from < 2 {
		return nil, false
	}
	end := r.from + frameLen(r.buf[r.from:])
	if r.to < end {
		return nil, false
	}
	msg = r.buf[r.from+2 : end]
	r.from = end
	return msg, true
}

// fill blocks until it has read something from src. The caller must take all messages with
// next before. Data may have been read even if there is an error.
func (r *frameReader) fill(src io.Reader) error {
	r.grow()
	n, err := src.Read(r.buf[r.to:])
	r.to += n
	switch {
	case err == nil:
		return nil
	case err != io.EOF:
		return err
	case r.atBoundary():
		return fmt.Errorf("the server closed the connection: %w", err)
	}
	return fmt.Errorf("the server closed the connection inside a message: %w", io.ErrUnexpectedEOF)
}

// grow makes room for the rest of a message, or for several short ones.
func (r *frameReader) grow() {
	left := r.buf[r.from:r.to]
	need := readBufSize
	if len(left) >= 2 {
		need = max(need, frameLen(left))
	}
	if need > len(r.buf) || len(r.buf) > maxKeptBuffer && need <= maxKeptBuffer {
		r.buf = append(make([]byte, 0, need), left...)[:need]
	} else {
		copy(r.buf, left)
	}
	r.from, r.to = 0, len(left)
}

// atBoundary reports whether the data read ends with a complete message.
func (r *frameReader) atBoundary() bool {
	at := r.from
	for r.to-at >= 2 {
		at += frameLen(r.buf[at:])
	}
	return at == r.to
}
