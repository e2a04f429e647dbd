package resolver

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/server/dnstap"
)

// Tap is a dnstap collector of a zone's queries and replies.
type Tap struct {
	To *dnstap.Tap
	// Full says that messages contain the packets.
	Full bool
	// Extra formats the extra field of messages; nil leaves it out.
	Extra *Format
}

// tell sends the messages for r and its reply msg, nil for none, to t. It does not block.
func (t *Tap) tell(r *Request, msg []byte, now time.Time) {
	m := dnstap.Message{Type: dnstap.ClientQuery, Protocol: dnstap.TCP, Client: r.Client, Query: now.Add(-r.Latency)}
	if r.Proto != TCP {
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

// tell sends the messages for r to all collectors of z.
func (z *Zone) tell(r *Request, msg []byte) {
	now := time.Now()
	for i := range z.Taps {
		z.Taps[i].tell(r, msg, now)
	}
}
