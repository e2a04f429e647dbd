package resolver

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/upstream"
)

// Tap is a dnstap collector of a zone's queries and replies.
type Tap struct {
	To *dnstap.Tap
	// Full says that messages contain the packets.
	Full bool
	// Extra formats the extra field of messages; nil leaves it out.
	Extra *Format
	// Local is the address of the listener, for {local}. It is invalid or unspecified if there
	// are several.
	Local netip.Addr
}

// extra returns the extra field of a message about r, nil for none.
func (t *Tap) extra(r *Request) []byte {
	if t.Extra == nil {
		return nil
	}
	return t.Extra.line(nil, r, nil, t.Local)
}

// clientMessage returns the message about the query of r.
func (r *Request) clientMessage() dnstap.Message {
	m := dnstap.Message{Type: dnstap.ClientQuery, Protocol: dnstap.TCP, Client: r.Client, Query: r.tappedAt}
	if r.Proto != TCP {
		m.Protocol = dnstap.UDP
	}
	return m
}

// tellQuery sends CLIENT_QUERY for r to all collectors of z, once. It does not block.
func (z *Zone) tellQuery(r *Request) {
	if len(z.Taps) == 0 || !r.tappedAt.IsZero() {
		return
	}
	r.tappedAt = time.Now().Add(r.Arrival - clock.Now())
	m := r.clientMessage()
	for i := range z.Taps {
		t := &z.Taps[i]
		if m.Extra, m.Packet = t.extra(r), nil; t.Full {
			m.Packet = r.Query.Packet
		}
		t.To.Send(&m)
	}
}

// tell sends the messages for r and its reply msg, nil for none, to all collectors of z. It does not
// block.
func (z *Zone) tell(r *Request, msg []byte) {
	z.tellQuery(r)
	if msg == nil {
		return
	}
	m := r.clientMessage()
	m.Type, m.Response = dnstap.ClientResponse, time.Now()
	for i := range z.Taps {
		t := &z.Taps[i]
		if m.Extra, m.Packet = t.extra(r), nil; t.Full {
			m.Packet = msg
		}
		t.To.Send(&m)
	}
}

// tapsExtra reports whether a message of z has an extra field.
func (z *Zone) tapsExtra() bool {
	for i := range z.Taps {
		if z.Taps[i].Extra != nil {
			return true
		}
	}
	return false
}

// forwarderTap tells a zone's collectors what is sent to upstreams for one question.
type forwarderTap struct {
	taps []Tap
	// request has the question and the client, for the extra field; nil if no message has one.
	request *Request
}

// forwarderTap returns the tap for exchanges with q, nil without collectors. r is the client's request,
// nil where no client waits. The tap keeps neither q nor r.
func (z *Zone) forwarderTap(q *wire.Query, r *Request) upstream.Tap {
	if len(z.Taps) == 0 {
		return nil
	}
	f := &forwarderTap{taps: z.Taps}
	if !z.tapsExtra() {
		return f
	}
	f.request = &Request{}
	f.request.zone = z
	if r != nil {
		f.request.Client, f.request.Proto, f.request.routes = r.Client, r.Proto, r.routes
	}
	f.request.Query.Parse(bytes.Clone(q.Packet))
	f.request.reply.Start(make([]byte, 0, wire.MinUDP), &f.request.Query)
	return f
}

// Exchanged is [upstream.Tap.Exchanged]: it sends FORWARDER_QUERY and, if there is a reply,
// FORWARDER_RESPONSE.
func (f *forwarderTap) Exchanged(s *upstream.Sent) {
	m := dnstap.Message{Type: dnstap.ForwarderQuery, Protocol: dnstap.TCP, Client: s.Local, Server: s.Server, Query: s.Sent}
	if s.Datagrams {
		m.Protocol = dnstap.UDP
	}
	f.send(s, m, s.Query)
	if s.Reply != nil {
		m.Type, m.Response = dnstap.ForwarderResponse, s.Received
		f.send(s, m, s.Reply)
	}
}

// send sends m to all collectors, with packet to those that take packets.
func (f *forwarderTap) send(s *upstream.Sent, m dnstap.Message, packet []byte) {
	for i := range f.taps {
		t := &f.taps[i]
		if m.Extra, m.Packet = nil, nil; t.Full {
			m.Packet = packet
		}
		if t.Extra != nil {
			r := *f.request
			r.ownLookups.exchange = new(atomic.Pointer[upstream.Asked])
			r.ownLookups.exchange.Store(&upstream.Asked{Server: s.Server})
			m.Extra = t.extra(&r)
		}
		t.To.Send(&m)
	}
}
