package resolver

import (
	"context"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// Explanation says what the path would do with a query, and why.
type Explanation struct {
	// Name and Type are the question. Zone takes it; nil: none does.
	Name wire.Name
	Type uint16
	Zone *Zone
	// Steps are what the steps decided, in order; MoreSteps is how many others there were.
	Steps     []ExplainedStep
	MoreSteps int
	// Source is the step that makes the reply, as in the label plugin of the metrics. The answer for
	// which the query waits may make it one of Alternatives.
	Source       string
	Alternatives []string
	// Waits is what the query has to wait for; the reply is not known then.
	Waits Wait
	// Pool is the pool that would be asked, nil for none. Stopped: it is not asked because of a loop.
	Pool    *upstream.Pool
	Stopped bool
	// Reply is the message that the client gets; nil if the query waits, or gets no reply.
	Reply []byte
	Rcode wire.Rcode
	// Err is what would be logged as the reason for an error.
	Err error
	// NotCopied is why no copy of the reply may answer in the kernel; "" if one may, or if that depends on an
	// answer that is not known.
	NotCopied string
}

// Wait is what a query waits for.
type Wait uint8

// What a query may wait for.
const (
	NoWait Wait = iota
	WaitUpstream
	WaitView
)

func (w Wait) String() string { return [...]string{"", "upstream", "view"}[w] }

// ExplainedStep is what a step of the path decided.
type ExplainedStep struct {
	// Depth is 0 for the client's question, and more for questions that are asked on its behalf.
	Depth int
	Name  wire.Name
	Type  uint16
	// Step is the name of the step: a value of the label plugin, or zone, view, loop, rewrite or alias.
	Step    string
	Outcome StepOutcome
	Reason  string
	// Cached is the entry that the cache has for the question, nil for none.
	Cached *cache.EntryInfo
}

// StepOutcome is what came of a step.
type StepOutcome uint8

// The outcomes of steps.
const (
	Takes   StepOutcome = iota // the step takes the query on
	Passes                     // the step leaves the query to the next one
	Answers                    // the step answers
	Waits                      // the step has to wait
)

func (o StepOutcome) String() string { return [...]string{"takes", "passes", "answers", "waits"}[o] }

// maxExplainedSteps bounds the steps of an explanation.
const maxExplainedSteps = 256

// trace collects what the steps of a dry run decide. It belongs to one run.
type trace struct {
	steps   []ExplainedStep
	more    int
	waited  bool           // a template needs an answer that takes a wait
	view    bool           // the run waits for a view
	others  [sources]bool  // other sources that the reply may come from
	pool    *upstream.Pool // the last one that was chosen
	stopped bool
}

// Explain runs the path for the query in packet, from client over proto, without waiting and without leaving
// anything behind: nothing is counted, logged, cached, kept in use or asked for. verdict is what the parser says
// of the packet; the explanation is nil unless the query is to be served.
func (rt *Routes) Explain(packet []byte, client netip.AddrPort, proto Proto) (e *Explanation, verdict wire.ParseResult) {
	now := clock.Now()
	r := &Request{Client: client, Proto: proto, Arrival: now, trace: new(trace), Sources: new(ReplySources)}
	r.Query.Packet = packet
	if verdict = r.Parse(); verdict != wire.Serve {
		return nil, verdict
	}
	r.Begin(rt, now, nil)
	o := rt.Resolve(r)
	return r.explain(o), verdict
}

// explain returns the explanation of r, whose dry run has come to o.
func (r *Request) explain(o Outcome) *Explanation {
	t := r.trace
	e := &Explanation{
		Name: wire.Name(r.Query.Name()), Type: r.Query.Type, Steps: t.steps, MoreSteps: t.more, Pool: t.pool, Stopped: t.stopped, Err: r.err,
	}
	if r.zone != r.routes.dropped {
		e.Zone = r.zone
	}
	if o == Answered {
		r.zone.shape(r)
		e.Source, e.Rcode = sourceNames[r.source], r.reply.Rcode()
		e.NotCopied = r.whyNotReused().text(r.zone)
		if msg := r.reply.Finish(r.limit()); !r.Dropped() {
			e.Reply = msg
		}
		return e
	}
	if o == Forward {
		r.source = r.upstreamSource()
	}
	e.Source, e.Waits = sourceNames[r.source], WaitUpstream
	if t.view {
		e.Waits = WaitView
	}
	e.NotCopied = r.refuseReuseLater(e.Waits).text(r.zone)
	r.traceVetting()
	for s, may := range t.others {
		if may && source(s) != r.source {
			e.Alternatives = append(e.Alternatives, sourceNames[s])
		}
	}
	return e
}

// note notes that step came to o in a dry run. reason may be "".
func (r *Request) note(step string, o Outcome, reason string) {
	if r.trace != nil {
		r.trace.add(r, step, stepOutcomes[o], reason)
	}
}

// mayBecome notes that the reply may come from s, depending on an answer that takes a wait.
func (r *Request) mayBecome(s source) {
	if r.trace != nil {
		r.trace.others[s] = true
	}
}

var stepOutcomes = [...]StepOutcome{Answered: Answers, notMine: Passes, WouldWait: Waits, Forward: Waits, tryAgain: Waits}

// add adds a step about r.
func (t *trace) add(r *Request, step string, o StepOutcome, reason string) {
	if len(t.steps) >= maxExplainedSteps {
		t.more++
		return
	}
	depth := int(r.hops)
	if depth == 0 && !r.direct {
		depth = 1
	}
	t.steps = append(t.steps, ExplainedStep{
		Depth: depth, Name: wire.Name(r.Query.Name()), Type: r.Query.Type, Step: step, Outcome: o, Reason: reason,
	})
}

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
