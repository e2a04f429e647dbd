package upstream

import (
	"net/netip"
)

// Asked says who was asked for a query, for logs.
type Asked struct {
	// Server is the server whose reply is the answer, or without an answer the last one that was
	// asked.
	Server netip.AddrPort
	// Hedged says that another server was asked because the first one was late; HedgeWon, that the
	// other one's reply is the answer.
	Hedged, HedgeWon bool
}

// report stores who was asked where the exchange's [From.Asked] says.
func (x *exchange) report() {
	if x.asked == nil || x.last == nil {
		return
	}
	x.asked.Store(&Asked{Server: x.last.addr, Hedged: x.askedOther, HedgeWon: x.hedgeWon})
}
