package transfer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

var (
	errNoSerial     = errors.New("the query has no SOA record with the client's serial")
	errTransferTime = errors.New("it takes too long")
	errTooSlow      = errors.New("the client takes less than 32 KiB a second")
	errNotSent      = errors.New("the client does not read it, or has closed the connection")
)

// onlyTCP is why a transfer is refused.
const onlyTCP = "zones are transferred over TCP and TLS only"

// Answer answers a client that asks for a zone. See [authority.Transfers].
func (t *Table) Answer(q authority.Transfer, r *wire.Reply) authority.TransferResult {
	rule, permitted := t.Permits(q.Name(), q.Client.Addr())
	switch {
	case rule == "" && q.Streams:
		return authority.TransferResult{}
	case rule == "":
		r.Fail(wire.Refused)
		return authority.TransferResult{Outcome: authority.TransferAnswered, Why: onlyTCP}
	case !permitted:
		result := t.fail(q, r, rule, Refused, "the client is not one of `to`")
		r.SetEDE(wire.EDEProhibited)
		return result
	case !q.Streams && q.Type == wire.TypeAXFR:
		return t.fail(q, r, rule, Refused, onlyTCP)
	}
	return t.answerZone(q, r, wire.Name(q.Name()))
}

// fail answers with an error, and counts it.
func (t *Table) fail(q authority.Transfer, r *wire.Reply, zone wire.Name, o Outcome, why string) authority.TransferResult {
	rcode := wire.ServFail
	if o == Refused {
		rcode = wire.Refused
	}
	r.Fail(rcode)
	return t.answered(q, zone, o, why)
}

// answered counts an answer that is one message.
func (t *Table) answered(q authority.Transfer, zone wire.Name, o Outcome, why string) authority.TransferResult {
	if !q.Dry {
		t.Count(zone, o)
	}
	return authority.TransferResult{Outcome: authority.TransferAnswered, Why: why}
}

// answerZone answers a client that may transfer the zone with this origin.
func (t *Table) answerZone(q authority.Transfer, r *wire.Reply, origin wire.Name) authority.TransferResult {
	source, err := q.Find(origin)
	if source == nil && err == nil {
		return authority.TransferResult{}
	}
	current := false
	if err == nil && q.Type == wire.TypeIXFR {
		current, err = hasCurrent(q, source.SOA)
	}
	switch {
	case err != nil:
		return t.fail(q, r, origin, Failed, err.Error())
	case current:
		var known wire.Compression
		r.SetAuthoritative()
		r.AddRR(&known, wire.Answer, source.SOA)
		return t.answered(q, origin, Current, "the SOA record alone")
	case q.Dry:
		return authority.TransferResult{Outcome: authority.TransferAnswered, Why: "the whole zone"}
	case q.Wait == nil:
		return authority.TransferResult{Outcome: authority.TransferWaits}
	}
	return t.begin(q, r, origin, source)
}

// hasCurrent reports whether the SOA record alone answers q, of type IXFR: the client has this version, or asks where there is no stream
// (RFC 1995, 2).
func hasCurrent(q authority.Transfer, soa wire.RR) (bool, error) {
	serial, ok := q.IXFRSerial()
	if !ok {
		return false, errNoSerial
	}
	return !q.Streams || UpToDate(soa, serial), nil
}

// begin makes the first message of a transfer.
func (t *Table) begin(q authority.Transfer, r *wire.Reply, origin wire.Name, source *authority.Source) authority.TransferResult {
	if err := t.Acquire(q.Wait, q.Client.Addr()); err != nil {
		return t.fail(q, r, origin, Busy, err.Error())
	}
	data, err := source.Load(q.Wait)
	if err != nil {
		t.Release(q.Client.Addr())
		t.log.Warn("the zone can't be sent", "zone", origin, "client", q.Client, "err", err)
		return t.fail(q, r, origin, Failed, err.Error())
	}
	now := clock.Now()
	s := &outgoing{Stream: NewStream(data.SOA(), data.All()), all: t.Transfers, client: q.Client, zone: origin, began: now, pace: NewPace(now)}
	if s.err = s.Fill(r); s.err != nil {
		r.Fail(wire.ServFail)
	}
	return authority.TransferResult{Outcome: authority.TransferAnswered, Stream: s}
}

// outgoing is a transfer that has begun. It holds its client's place.
type outgoing struct {
	*Stream
	all    *Transfers
	client netip.AddrPort
	zone   wire.Name
	began  time.Duration
	pace   Pace
	err    error // why the transfer ends early
}

// Next makes the next message. See [authority.Stream].
func (t *outgoing) Next(ctx context.Context, last []byte, q *wire.Query, r *wire.Reply) bool {
	switch {
	case t.err != nil || !t.More():
		return false
	case ctx.Err() != nil:
		t.err = ctx.Err()
	case clock.Now()-t.began > maxDuration:
		t.err = errTransferTime
	case !t.pace.Sustains(clock.Now(), len(last)):
		t.err = errTooSlow
	default:
		r.Start(last, q)
		t.err = t.Fill(r)
	}
	return t.err == nil
}

// End counts and logs the transfer, and gives its place back. See [authority.Stream].
func (t *outgoing) End(sent bool) (complete bool) {
	t.Close()
	t.all.Release(t.client.Addr())
	if t.err == nil && !sent {
		t.err = errNotSent
	}
	log, o := t.all.log.With("zone", t.zone, "client", t.client, "serial", t.soa.Serial(), "records", t.records), Sent
	if t.err != nil {
		o = Failed
		log.Warn("the zone was not sent completely", "err", t.err)
	} else {
		log.Info("zone sent")
	}
	t.all.Count(t.zone, o)
	return t.err == nil
}

// Permits reports whether client may transfer the zone with this name. rule is the longest zone of the
// directives that has the name; "" if none does.
func (t *Table) Permits(name []byte, client netip.Addr) (rule wire.Name, ok bool) {
	found, rule := t.match(name)
	if found == nil {
		return "", false
	}
	ok = found.Any || slices.ContainsFunc(found.To, func(to netip.AddrPort) bool { return to.Addr() == client })
	return rule, ok
}

// match returns the directive with the longest zone that has name, the first of several.
func (t *Table) match(name []byte) (found *config.Transfer, zone wire.Name) {
	for _, r := range t.rules {
		for _, z := range r.Zones {
			if len(z) > len(zone) && wire.Under(name, z) {
				found, zone = r, z
			}
		}
	}
	return found, zone
}
