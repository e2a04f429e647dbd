package resolver

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/server/dnstap"
)

// Tap is a collector that a zone's queries and replies are told to.
type Tap struct {
	To *dnstap.Tap
	// Full says that it gets the packets, too.
	Full bool
	// Extra is a line about the query that it gets; nil is none.
	Extra *Format
}

// tell tells t's collector of r and its reply, nil if there is none. It does not block.
func (t *Tap) tell(r *Request, msg []byte, now time.Time) {
	m := dnstap.Message{Type: dnstap.ClientQuery, Protocol: dnstap.TCP, Client: r.Client, Query: now.Add(-r.Latency)}
	if r.Proto == UDP {
		m.Protocol = dnstap.UDP
	}
	if t.Extra != nil {
		m.Extra = t.Extra.line(nil, r, nil, netip.Addr{})
	}
	if t.Full {
		m.Packet = r.Query.Packet
	}
	t.To.Send(&m)
	if msg == nil {
		return
	}
	m.Type, m.Response = dnstap.ClientResponse, now
	if t.Full {
		m.Packet = msg
	}
	t.To.Send(&m)
}

// tell tells all of z's collectors.
func (z *Zone) tell(r *Request, msg []byte) {
	now := time.Now()
	for i := range z.Taps {
		z.Taps[i].tell(r, msg, now)
	}
}
