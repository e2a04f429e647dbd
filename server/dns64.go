package server

import (
	"context"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// DNS64 makes IPv6 addresses of IPv4 ones (RFC 6147). It is immutable and safe for
// concurrent use.
type DNS64 struct {
	prefix    wire.Prefix64
	all, ipv4 bool
}

// NewDNS64 makes the DNS64 of cfg, whose prefix is valid.
func NewDNS64(cfg *config.DNS64) *DNS64 {
	prefix, _ := wire.NewPrefix64(cfg.Prefix)
	return &DNS64{prefix: prefix, all: cfg.TranslateAll, ipv4: cfg.AllowIPv4}
}

// applies reports whether x may be answered with addresses made here. Who validates for
// himself gets what there is: it would see through them (RFC 6147, 5.5).
func (d *DNS64) applies(x *request) bool {
	if x.query.Type != wire.TypeAAAA || x.query.CD() && x.query.DO {
		return false
	}
	return d.ipv4 || x.client.Addr().Unmap().Is6()
}

// needsSynthesis reports whether x, whose reply is complete, is to be answered anew: there is no
// address in it, and the name may still exist (RFC 6147, 5.1).
func (d *DNS64) needsSynthesis(x *request) bool {
	if x.reply.Rcode() == wire.NXDomain || x.verdicts&dropped != 0 {
		return false
	}
	_, has := x.reply.First(wire.Answer, wire.TypeAAAA)
	return d.all || !has
}

// dns64 is the step behind all others: x has come to at; where that is a name without
// IPv6 addresses, they are made of its IPv4 ones. It does so without waiting if neither
// family takes that.
func (rt *Routes) dns64(x *request, at step) step {
	d := x.zone.DNS64
	if d == nil || !d.applies(x) {
		return at
	}
	if at == done {
		if !d.needsSynthesis(x) {
			return done
		}
		if waits, _ := rt.map64(x, nil); !waits {
			return done
		}
	}
	x.reply.Reset()
	x.source = fromServer
	return mapped
}

// dns64On is dns64 where it may wait. It begins anew.
func (rt *Routes) dns64On(ctx context.Context, x *request) error {
	wait := func(x *request, at step) error { return rt.complete(ctx, x, at) }
	if err := wait(x, rt.rewritten(x)); err != nil || !x.zone.DNS64.needsSynthesis(x) {
		return err
	}
	_, err := rt.map64(x, wait)
	return err
}

// unknownTTL is the most that an address made here is good for, in seconds, where the
// name's own zone did not say how long it has none (RFC 6147, 5.1.7).
const unknownTTL = 600

// map64 asks for the IPv4 addresses of x's name, through the whole path, and makes x's
// reply of the answer. wait completes what takes waiting; without it, that ends it with
// waits, and x is as it was. An error leaves x a SERVFAIL.
func (rt *Routes) map64(x *request, wait func(*request, step) error) (waits bool, err error) {
	most, ok := x.reply.First(wire.Authority, wire.TypeSOA)
	if !ok {
		most = unknownTTL
	}
	w := walkers.Get().(*walker)
	defer w.release()
	now := x.arrival
	if wait != nil {
		now = clock.Now()
	}
	name := x.query.Packet[wire.HeaderLen : wire.HeaderLen+len(x.query.Name())]
	if !w.begin(x, name, wire.TypeA, now) {
		return false, nil
	}
	if at := rt.answer(&w.request); at != done {
		if wait == nil {
			return true, nil
		}
		err = wait(&w.request, at)
	}
	if w.verdicts&dropped != 0 { // the client may not have them
		return false, nil
	}
	ordered := w.ordered
	if failed := x.reply.Map64(&w.reply, &x.zone.DNS64.prefix, most); failed != nil {
		x.reply.Fail(wire.ServFail)
		err = failed
	}
	x.source, x.ordered = fromDNS64, ordered
	return false, err
}
