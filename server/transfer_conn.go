package server

import (
	"github.com/nodens-dns/nodens/server/resolver"
)

// sendTransfer sends the zone transfer of r, whose first message is msg. It blocks for the client, which gets the time of a
// write for each message. A transfer that ends early closes the connection (RFC 5936, 4.1): what the
// client has is not the zone.
func (c *tcpConn) sendTransfer(r *resolver.Request, msg []byte) {
	sent := false
	defer func() {
		if p := recover(); p != nil {
			c.s.panicked(r, nil, p)
			sent = false
		}
		if !r.EndTransfer(sent) {
			c.l.tcp.closeSoon(&c.connState)
		}
	}()
	for sent = true; sent && msg != nil; msg = r.NextMessage() {
		sent = c.writer.send(msg)
	}
}

// send writes one message and blocks until the kernel has taken it. It returns false if the connection is
// lost.
func (o *connWriter) send(msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && !o.broken {
		o.changed.Wait()
	}
	if o.broken {
		return false
	}
	o.writing = true
	o.queue = appendFrame(o.queue, msg)
	o.c.s.unsent.Add(int64(lengthPrefix + len(msg)))
	o.writeQueue(nil)
	return !o.broken
}
