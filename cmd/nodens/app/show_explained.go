package app

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/netip"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// packet returns the query for name.
func (q *explainQuery) packet(name wire.Name) []byte {
	return wire.AppendClientQuery(nil, uint16(rand.Uint32()), []byte(name), q.qtype, q.dnssec, q.disabled)
}

// question returns the explanation of one query.
func (q *explainQuery) question(ctx context.Context, packet []byte) report.ExplainedQuestion {
	out := report.ExplainedQuestion{
		Steps: []report.ExplainedStep{}, Alternatives: []string{}, Cached: []report.CacheEntry{}, ExplainedReply: report.ExplainedReply{Answers: []string{}},
	}
	client := netip.AddrPortFrom(q.from.addr, 0)
	x, verdict := q.listener.Routes.Explain(packet, client, q.proto)
	if verdict != wire.Serve {
		out.Error = "the query is not valid"
		return out
	}
	out.Name, out.Type = x.Name.String(), wire.TypeName(x.Type)
	out.MoreSteps, out.Source, out.Waits = x.MoreSteps, x.Source, x.Waits.String()
	out.Alternatives = append(out.Alternatives, x.Alternatives...)
	for i := range x.Steps {
		out.Steps = append(out.Steps, newExplainedStep(&x.Steps[i]))
	}
	if z := x.Zone; z != nil {
		out.Zone = &report.ExplainedZone{Name: z.Name.String(), Line: z.Line, View: z.View.Name()}
		if z.Cache != nil {
			out.Cached = newCacheEntries(z.Cache.Entries([]byte(x.Name)))
		}
	}
	out.Kernel = q.explainedKernel(packet, x)
	switch x.Waits {
	case resolver.WaitUpstream:
		out.Forward = newExplainedForward(x, q.proto)
	case resolver.NoWait:
		out.ExplainedReply = newExplainedReply(x.Reply, x.Rcode, x.Err)
	case resolver.WaitView:
	}
	if q.ask {
		if a, _ := q.listener.Routes.Ask(ctx, packet, client, q.proto); a != nil {
			out.Asked = &report.AskedQuestion{Source: a.Source, Seconds: a.Latency.Seconds(), ExplainedReply: newExplainedReply(a.Reply, a.Rcode, a.Err)}
		}
	}
	return out
}

// newExplainedStep returns s for the reply.
func newExplainedStep(s *resolver.ExplainedStep) report.ExplainedStep {
	out := report.ExplainedStep{
		Depth: s.Depth, Name: s.Name.String(), Type: wire.TypeName(s.Type), Step: s.Step, Outcome: s.Outcome.String(), Reason: s.Reason,
	}
	if s.Cached != nil {
		entry := newCacheEntry(s.Cached)
		out.Cached = &entry
	}
	return out
}

// newExplainedForward returns the forward directive of x, nil for none.
func newExplainedForward(x *resolver.Explanation, proto resolver.Proto) *report.ExplainedForward {
	if x.Pool == nil {
		return nil
	}
	f := &report.ExplainedForward{From: x.Pool.From().String(), Policy: x.Pool.Policy(), Stopped: x.Stopped, Upstreams: []report.ExplainedUpstream{}}
	for _, c := range x.Pool.Candidates(proto == resolver.TCP) {
		f.Upstreams = append(f.Upstreams, report.ExplainedUpstream{To: c.To.String(), Down: c.Down, Suspect: c.Suspect, RTTSeconds: c.RTT.Seconds()})
	}
	return f
}

// newExplainedReply returns what the message, nil for none, has. failure is why it is an error, nil if it is none.
func newExplainedReply(message []byte, rcode wire.Rcode, failure error) report.ExplainedReply {
	out := report.ExplainedReply{Rcode: rcodeName(rcode), NoReply: message == nil, Answers: []string{}}
	if failure != nil {
		out.Error = failure.Error()
	}
	if message == nil {
		return out
	}
	p, err := wire.Present(message)
	if err != nil {
		out.Error = cmp.Or(out.Error, "the reply is not valid: "+err.Error())
		return out
	}
	out.TTLSeconds = p.TTL
	shown := min(len(p.Answers), maxShownRecords)
	out.Answers = append(out.Answers, p.Answers[:shown]...)
	out.MoreAnswers = len(p.Answers) - shown
	return out
}

// rcodeName returns the name of a reply's rcode. 16 has another meaning in signed messages.
func rcodeName(rcode wire.Rcode) string {
	if rcode == wire.BadVers {
		return "BADVERS"
	}
	return rcode.String()
}

// newCacheEntries returns the first entries of list for the reply.
func newCacheEntries(list []cache.EntryInfo) []report.CacheEntry {
	entries := []report.CacheEntry{}
	for i := range list[:min(len(list), maxShownEntries)] {
		entries = append(entries, newCacheEntry(&list[i]))
	}
	return entries
}

// newCacheEntry returns i for the reply.
func newCacheEntry(i *cache.EntryInfo) report.CacheEntry {
	e := report.CacheEntry{
		Name: i.Name.String(), Type: wire.TypeName(i.Type), Class: wire.ClassName(i.Class), DNSSEC: i.DO, CheckingDisabled: i.CD,
		Rcode: i.Rcode.String(), Kind: "success", Answers: i.Answers, Subtree: i.Subtree,
		TTLSeconds: i.TTL.Seconds(), StaleSeconds: i.Stale.Seconds(), Bytes: i.Size,
	}
	if i.Denial {
		e.Kind = "denial"
	}
	if i.Age >= 0 {
		age := i.Age.Seconds()
		e.AgeSeconds = &age
	}
	return e
}
