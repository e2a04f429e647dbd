package upstream

import (
	"net"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// Tap receives each query of an exchange to a server, for dnstap.
type Tap interface {
	// Exchanged is called when the query has a reply, has failed, or is given up because another
	// server has answered. It must not block, and must not keep s or its slices.
	Exchanged(s *Sent)
}

// Sent is one query to a server, and its reply.
type Sent struct {
	Server netip.AddrPort
	// Local is the agent's address of the socket. It is invalid where it is not known: over HTTPS,
	// QUIC and gRPC, and if there was no connection.
	Local netip.AddrPort
	// Datagrams says that the query went over UDP or QUIC.
	Datagrams bool
	// Sent is when the query was sent, and Received when its reply arrived; zero: there is none.
	Sent, Received time.Time
	// Query and Reply are the messages. Reply is nil if there is none.
	Query, Reply []byte
}

// tapEnd passes q, which has its result or is given up, to the tap. sent says that a transport has got it.
func (x *exchange) tapEnd(q *query, sent, replied bool, now time.Time) {
	if x.tap == nil || !sent {
		return
	}
	a := &q.attempt
	s := Sent{
		Server: a.server.addr, Local: q.local, Sent: a.sent, Query: q.message(),
		Datagrams: a.server.target.Transport == config.PlainDNS && !q.tcp || a.server.target.Transport == config.DNSOverQUIC,
	}
	if replied {
		s.Reply, s.Received = q.reply[:q.replyLen], now
	}
	x.tap.Exchanged(&s)
}

// localAddr returns the local address of conn, which is invalid if conn has none.
func localAddr(conn interface{ LocalAddr() net.Addr }) netip.AddrPort {
	switch addr := conn.LocalAddr().(type) {
	case *net.UDPAddr:
		return unmapped(addr.AddrPort())
	case *net.TCPAddr:
		return unmapped(addr.AddrPort())
	}
	return netip.AddrPort{}
}

func unmapped(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
