package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHeld is how many bytes of replies a connection holds at most. Most replies have a few hundred.
	maxHeld = 2048
	// maxHold is how long they are held at most: when a client has ended the stream of a reply, or has
	// not allowed it to be written. Go's scheduler may still wake up for a timer that has been stopped, so a
	// shorter time costs CPU at low rates.
	maxHold = 20 * time.Millisecond
)

// heldWrites joins the frames of a reply over HTTP/2. net/http writes each of them on its own: the
// header, the message, and what ends the stream. While a reply is being written, what is written to
// the connection is held, and leaves with the first write after that. The zero value is not ready:
// conn must be set.
type heldWrites struct {
	conn    net.Conn
	replies atomic.Int32 // being written

	mu    sync.Mutex // held while conn is written to
	bytes []byte
	timer *time.Timer // runs while there are bytes
}

// hold begins a reply. It does not block.
func (h *heldWrites) hold() { h.replies.Add(1) }

// release ends a reply, except for the frame that ends the stream.
func (h *heldWrites) release() { h.replies.Add(-1) }

// Write writes b, or holds it.
func (h *heldWrites) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.replies.Load() > 0 && len(h.bytes)+len(b) <= maxHeld:
		if len(h.bytes) == 0 {
			h.startTimer()
		}
		h.bytes = append(h.bytes, b...)
		return len(b), nil
	case len(h.bytes) == 0:
		return h.conn.Write(b)
	case len(b) > maxHeld:
		if err := h.flush(); err != nil {
			return 0, err
		}
		return h.conn.Write(b)
	}
	h.bytes = append(h.bytes, b...)
	if err := h.flush(); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (h *heldWrites) startTimer() {
	if h.timer == nil {
		h.timer = time.AfterFunc(maxHold, h.timeout)
		return
	}
	h.timer.Reset(maxHold)
}

// flush writes what is held. An error of the connection also ends later writes.
func (h *heldWrites) flush() error {
	h.timer.Stop()
	_, err := h.conn.Write(h.bytes)
	h.bytes = h.bytes[:0]
	return err
}

// timeout writes what has been held for too long.
func (h *heldWrites) timeout() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.bytes) > 0 {
		_ = h.flush()
	}
}
