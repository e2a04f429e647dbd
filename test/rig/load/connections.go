package load

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// connect begins the next connection on the socket, whose present one it ends.
func (c *client) connect(s *socket) bool {
	if c.Sent >= uint64(len(c.socks)) { // the socket has one
		if errno := connect(s.fd, nil); errno != 0 {
			c.fail(errno)
			return false
		}
	}
	// The kernel takes the port in network byte order.
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], c.to.Port())
	to := address{Family: unix.AF_INET, Port: binary.NativeEndian.Uint16(port[:]), Addr: c.to.Addr().As4()}
	c.turn = (c.turn + 1) % len(c.socks)
	c.Sent++
	// A server that accepts no connection, or resets it, is what is tried.
	_ = connect(s.fd, &to)
	return true
}
