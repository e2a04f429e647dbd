package resolver

import (
	"context"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Asked is what became of a query.
type Asked struct {
	// Source is the step that made the reply, as in the label plugin of the metrics.
	Source string
	Rcode  wire.Rcode
	// Reply is the message, nil if the query gets no reply.
	Reply []byte
	// Latency is the time from the query to the reply.
	Latency time.Duration
	// Err is why the reply is an error.
	Err error
}

// Ask answers the query in packet, as if client had sent it over proto: it is counted, logged and cached like any other,
// and asks upstreams. It may wait until ctx ends. verdict is as in [Routes.Explain]; without a query to serve
// the result is nil.
func (rt *Routes) Ask(ctx context.Context, packet []byte, client netip.AddrPort, proto Proto) (a *Asked, verdict wire.ParseResult) {
	r := &Request{Client: client, Proto: proto, Arrival: clock.Now()}
	r.Query.Packet = packet
	if verdict = r.Parse(); verdict != wire.Serve {
		return nil, verdict
	}
	r.Permit(ctx)
	r.Begin(rt, r.Arrival, nil)
	if rt.Resolve(r) == Forward {
		r.Forward()
	}
	msg := r.Finish()
	return &Asked{Source: sourceNames[r.source], Rcode: r.reply.Rcode(), Reply: msg, Latency: r.Latency, Err: r.err}, verdict
}
