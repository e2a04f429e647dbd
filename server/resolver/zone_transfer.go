package resolver

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
)

var (
	errNoSerial     = errors.New("the query has no SOA record with the client's serial")
	errNotLoaded    = errors.New("the zone is not loaded")
	errTransferTime = errors.New("it takes too long")
	errTooSlow      = errors.New("the client takes less than 32 KiB a second")
	errNotSent      = errors.New("the client does not read it, or has closed the connection")
)

// outgoing is a zone transfer whose first message is the reply. The others follow it.
type outgoing struct {
	*transfer.Stream
	zone  wire.Name
	began time.Duration
	pace  transfer.Pace
	// buf is the buffer of all messages but the first.
	buf []byte
	err error // why the transfer ends early
}

// zoneData is a version of a zone.
type zoneData struct {
	soa     wire.RR
	records iter.Seq[wire.RR]
	// load, if not nil, returns the version to send, which may be a later one; this one has no records. It may wait until ctx
	// ends.
	load func(ctx context.Context) (*zoneData, error)
}

// transferWait is how long a transfer waits for the view of the cluster to load what is missing: several namespaces at once, where
// a query needs one.
const transferWait = 5 * time.Second

// transfer is the step of zone transfers. With a stream the reply is the first message, and
// [Request.NextMessage] makes the others.
func (z *Zone) transfer(r *Request) Outcome {
	q := &r.Query
	if q.Type != wire.TypeAXFR && q.Type != wire.TypeIXFR {
		return notMine
	}
	rule, permitted := z.Transfer.Permits(q.Name(), r.Client.Addr())
	switch stream := r.Streams && r.direct; {
	case rule == "" && stream:
		return notMine
	case rule == "":
		return z.refuseTransfer(r, "", onlyTCP)
	case !permitted:
		return z.refuseTransfer(r, rule, "the client is not one of `to`")
	case !stream && q.Type == wire.TypeAXFR:
		return z.refuseTransfer(r, rule, onlyTCP)
	}
	return z.transferZone(r, wire.Name(q.Name()))
}

// onlyTCP is why a transfer is refused.
const onlyTCP = "zones are transferred over TCP and TLS only"

// refuseTransfer answers REFUSED. rule is the zone of the directive; "": none has the name.
func (z *Zone) refuseTransfer(r *Request, rule wire.Name, why string) Outcome {
	r.reply.Fail(wire.Refused)
	if rule == "" {
		r.source = fromTransfer
		r.note(stepOf[fromTransfer], Answered, why)
		return Answered
	}
	return z.transferred(r, rule, transfer.Refused, why)
}

// transferred ends the step with the reply as it is, and counts it.
func (z *Zone) transferred(r *Request, zone wire.Name, o transfer.Outcome, why string) Outcome {
	r.source, r.ordered = fromTransfer, true
	r.note(stepOf[fromTransfer], Answered, why)
	if r.trace == nil {
		z.Transfer.Count(zone, o)
	}
	return Answered
}

// transferZone answers a client that may transfer the zone with this origin.
func (z *Zone) transferZone(r *Request, origin wire.Name) Outcome {
	data, err := z.transferData(origin)
	if data == nil && err == nil {
		return notMine
	}
	current := false
	if err == nil && r.Query.Type == wire.TypeIXFR {
		current, err = hasCurrent(r, data.soa)
	}
	switch {
	case err != nil:
		r.reply.Fail(wire.ServFail)
		return z.transferred(r, origin, transfer.Failed, err.Error())
	case current:
		var known wire.Compression
		r.reply.SetAuthoritative()
		r.reply.AddRR(&known, wire.Answer, data.soa)
		return z.transferred(r, origin, transfer.Current, "the SOA record alone")
	case r.trace != nil:
		r.source = fromTransfer
		r.note(stepOf[fromTransfer], Answered, "the whole zone")
		return Answered
	case !r.mayWait():
		return WouldWait
	}
	return z.beginTransfer(r, origin, data)
}

// hasCurrent reports whether the SOA record alone answers r, a query of type IXFR: the client has this version, or asks where
// there is no stream (RFC 1995, 2).
func hasCurrent(r *Request, soa wire.RR) (bool, error) {
	serial, ok := r.Query.IXFRSerial()
	if !ok {
		return false, errNoSerial
	}
	return !r.Streams || !r.direct || transfer.UpToDate(soa, serial), nil
}

// transferData returns the zone with this origin, from the first source that has it, in the order of the path; nil if none does.
func (z *Zone) transferData(origin wire.Name) (*zoneData, error) {
	if z.External != nil {
		if soa, ok := z.External.SOA(origin); ok {
			return &zoneData{soa: soa, load: viewLoader(z.External, origin)}, nil
		}
	}
	if z.Cluster != nil {
		if soa, ok := z.Cluster.SOA(origin); ok {
			return &zoneData{soa: soa, load: viewLoader(z.Cluster, origin)}, nil
		}
	}
	for _, table := range []*zonefile.Table{z.File, z.Auto, z.Secondary} {
		if table == nil || !table.Serves(origin) {
			continue
		}
		data := table.Zone(origin)
		if data == nil {
			return nil, errNotLoaded
		}
		return &zoneData{soa: data.SOA(), records: data.All()}, nil
	}
	return nil, nil //nolint:nilnil // there is no such zone
}

// viewLoader returns zoneData.load for a zone that v has.
func viewLoader(v view, origin wire.Name) func(context.Context) (*zoneData, error) {
	return func(ctx context.Context) (*zoneData, error) {
		limited, cancel := context.WithTimeout(ctx, transferWait)
		defer cancel()
		s, err := v.Snapshot(limited, origin)
		if err != nil {
			return nil, err
		}
		return &zoneData{soa: s.SOA(), records: s.All()}, nil
	}
}

// beginTransfer makes the first message of a transfer. r may wait, and its client takes a stream.
func (z *Zone) beginTransfer(r *Request, origin wire.Name, data *zoneData) Outcome {
	if err := z.Transfer.Acquire(r.ctx, r.Client.Addr()); err != nil {
		r.reply.Fail(wire.ServFail)
		return z.transferred(r, origin, transfer.Busy, err.Error())
	}
	if data.load != nil {
		loaded, err := data.load(r.ctx)
		if err != nil {
			z.Transfer.Release(r.Client.Addr())
			z.Transfer.ReportFailure(origin, r.Client, err)
			r.reply.Fail(wire.ServFail)
			return z.transferred(r, origin, transfer.Failed, err.Error())
		}
		data = loaded
	}
	r.outgoing = &outgoing{Stream: transfer.NewStream(data.soa, data.records), zone: origin, began: clock.Now(), pace: transfer.NewPace(clock.Now())}
	r.source, r.ordered = fromTransfer, true
	if r.outgoing.err = r.outgoing.Fill(&r.reply); r.outgoing.err != nil {
		r.reply.Fail(wire.ServFail)
	}
	return Answered
}

// Transfers reports whether r's reply is the first message of a transfer. Then the caller sends the messages of
// [Request.NextMessage] after it, and calls [Request.EndTransfer].
func (r *Request) Transfers() bool { return r.outgoing != nil }

// NextMessage returns the next message of the transfer; nil if there is none, or the transfer must end early. The message is
// valid until the next call.
func (r *Request) NextMessage() []byte {
	t := r.outgoing
	switch {
	case t.err != nil || !t.More():
		return nil
	case r.ctx.Err() != nil:
		t.err = r.ctx.Err()
	case clock.Now()-t.began > transfer.MaxDuration:
		t.err = errTransferTime
	case !t.pace.Sustains(clock.Now(), len(t.buf)):
		t.err = errTooSlow
	default:
		r.reply.Start(t.buf, &r.Query)
		t.err = t.Fill(&r.reply)
	}
	if t.err != nil {
		return nil
	}
	r.zone.shape(r)
	t.buf = r.message(wire.MaxMessage)
	return t.buf
}

// EndTransfer ends the transfer. sent says that all messages so far were written. It returns false if the client does
// not have the whole zone, so that its connection must be closed.
func (r *Request) EndTransfer(sent bool) (complete bool) {
	t, all := r.outgoing, r.zone.Transfer
	r.outgoing = nil
	t.Close()
	all.Release(r.Client.Addr())
	if t.err == nil && !sent {
		t.err = errNotSent
	}
	all.Report(t.zone, r.Client, t.Stream, t.err)
	if t.err != nil {
		all.Count(t.zone, transfer.Failed)
		return false
	}
	all.Count(t.zone, transfer.Sent)
	return true
}

// AnswerUnsupported answers r, which Parse has found [wire.Unsupported]: a NOTIFY for a zone that is transferred from a primary server
// (RFC 1996) triggers a check of the zone and is confirmed, everything else is NOTIMP. It appends the reply to buf; nil is none: a
// NOTIFY of another sender is ignored (RFC 1996, 3.10). The query is not counted.
func (rt *Routes) AnswerUnsupported(r *Request, buf []byte) []byte {
	if r.Query.ParseNotify() {
		if z := rt.match(r); z != nil && z.Secondary != nil {
			switch z.Secondary.Notify(r.Query.Name(), r.Client.Addr()) {
			case zonefile.Notified:
				return wire.AppendNotified(buf, r.Query.Packet)
			case zonefile.Ignored:
				return nil
			case zonefile.NotSecondary:
			}
		}
	}
	return wire.AppendError(buf, r.Query.Packet, wire.NotImp)
}
