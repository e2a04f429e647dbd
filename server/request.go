package server

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/fastpath"
	"github.com/nodens-dns/nodens/upstream"
)

// request is one query on its way and the reply made for it. It is reused for
// query after query.
type request struct {
	query   wire.Query
	reply   wire.Reply
	zone    *Zone
	client  netip.AddrPort
	arrival time.Duration // when it was read, by package clock
	latency time.Duration // until the reply was whole
	stripe  int           // says which of the counters it uses; any number will do
	proto   proto
	source  source
	target  wire.Name      // of the alias that is to be chased
	pool    *upstream.Pool // that is to be asked
	place   share.Client   // whose place it holds, as far as it waits
	// missing is the view that has to get what the answer hangs on.
	missing view
	claimed uint16 // the client's UDP payload size where no `bufsize` counts
	hops    uint8  // aliases followed to get here
	// budget is what answers of the cluster may take; nil, where others don't wait for
	// this query, has no end. Exchanges that are made for x's sake share it.
	budget    *kubernetes.Budget
	steps     kubernetes.Budget // what budget points to in a client's query
	direct    bool              // this is a client's query, and its reply what is sent
	epochs    epochs
	copy      fastpath.Answer // for the kernel
	denied    bool            // which kind of the cache's answers it is of, for the copy
	ordered   bool            // the answers' order is not to be changed
	viaSearch bool            // the reply is to another name on the client's search path
	verdicts  verdicts
	rule      wire.Name // whose verdict is in marks; "" if no rule speaks of the query
}

// expect tells the reply how long it may get, once the query says what its client takes:
// what is cut off from a client's reply need not be written.
func (x *request) expect() {
	if x.direct && x.proto == udp {
		x.reply.Expect(x.query.Limit())
	}
}

// detach makes w a copy of x that shares nothing with it, in w's own buffers for
// packet and reply.
func (x *request) detach(w *request, packet, reply []byte) {
	*w = *x
	w.budget = nil // which is x's
	w.query.Packet = append(packet[:0], x.query.Packet...)
	w.reply.Detach(reply, &w.query)
}

// limitSize makes x.q's payload size what x's zone allows.
func (x *request) limitSize() {
	x.claimed = 0
	if x.zone.Bufsize == 0 {
		x.claimed = x.query.UDPSize // for the log
	}
	x.query.UDPSize = min(x.query.UDPSize, x.zone.maxSize())
}

// proto is how a query came.
type proto uint8

const (
	udp proto = iota
	tcp
	transports = 2
)

func (t proto) String() string {
	if t == tcp {
		return "tcp"
	}
	return "udp"
}
