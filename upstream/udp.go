package upstream

import (
	"context"
	"net"
	"net/netip"
	"time"
)

const (
	// maxUses is how many queries go out of one port. The port is worth 15 bits
	// against forgers only as long as nobody has found it out; a socket costs
	// about as much as two exchanges, spread over 32 of them 6 %. Half would
	// cost 12 % for little, double lets a port live twice as long.
	maxUses = 32
	// maxBusyUDP bounds the sockets in use per server: with a server that is
	// silent and a read timeout of 2 s it is 1,024 queries a second that wait.
	// Half is too few for a busy node, double is files and 8 MiB of buffers more.
	maxBusyUDP = 2048
	// maxIdleUDP is about what 64,000 queries a second at 1 ms each keep in use.
	// More are leftovers of a burst.
	maxIdleUDP = 64
)

// udp is one query per datagram over a connected socket.
type udp struct{ to *net.UDPAddr }

func newUDP(to netip.AddrPort, bounds pooling) *conns {
	return newConns(udp{net.UDPAddrFromAddrPort(to)}, bounds)
}

// dial opens a socket that is connected, so that the kernel takes datagrams from
// that one address and port only, and hands on ICMP errors. The kernel draws the
// port from its own random generator, out of ip_local_port_range.
func (u udp) dial(context.Context, time.Time) (net.Conn, error) {
	return net.DialUDP("udp", nil, u.to)
}

// talk is [protocol.talk].
func (u udp) talk(conn net.Conn, c *call) (msg []byte, keep bool, err error) {
	if _, err := conn.Write(c.message()); err != nil {
		return nil, false, err
	}
	for {
		n, err := conn.Read(c.reply[:datagramRoom+1])
		if err != nil {
			return nil, false, err
		}
		msg := c.reply[:n]
		if !c.accepts(msg) {
			continue
		}
		if n > datagramRoom { // the kernel has cut the rest off
			msg[2] |= tcBit
		}
		return msg, true, nil
	}
}
