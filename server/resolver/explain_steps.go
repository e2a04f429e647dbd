package resolver

import (
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
)

// The names of steps that make no reply, and so are no source.
const (
	stepZone    = "zone"
	stepLoop    = "loop"
	stepRewrite = "rewrite"
	stepAlias   = "alias"
	stepTSIG    = "tsig"
)

// stepOf are the names of the steps that are sources.
var stepOf = sourceNames

// onlyIN is why another class is refused.
const onlyIN = "only class IN is served"

// traceZone notes that z, nil for none, takes r.
func (rt *Routes) traceZone(r *Request, z *Zone) {
	rt.traceViews(r, z)
	switch {
	case z != nil && z.View != nil:
		r.trace.add(r, stepZone, Takes, fmt.Sprintf("%s, view %s", blockText(z), z.View.Name()))
	case z != nil:
		r.trace.add(r, stepZone, Takes, blockText(z))
	case r.Query.Class != wire.ClassIN && !rt.classes:
		r.note(stepZone, Answered, onlyIN)
	case r.Query.EDNS && r.Query.Version != 0:
		r.note(stepZone, Answered, fmt.Sprintf("EDNS version %d is not known", r.Query.Version))
	case rt.match(r) != nil:
		r.note(stepZone, Answered, "the server block has no directive that answers queries")
	default:
		r.note(stepZone, Answered, "no server block of the listener takes the name")
	}
}

// traceViews notes which views of the name's zones, before z, do not match r.
func (rt *Routes) traceViews(r *Request, z *Zone) {
	if !rt.views {
		return
	}
	for name := r.Query.Name(); len(name) > 0 && (z == nil || len(name) >= len(z.Name)); name = parentName(name) {
		for other := rt.zones[wire.Name(name)]; other != nil && other != z; other = other.next {
			if other.View != nil {
				r.trace.add(r, stepZone, Passes, fmt.Sprintf("%s: the view %s does not match", blockText(other), other.View.Name()))
			}
		}
	}
}

// parentName returns name without its first label; nil after the root.
func parentName(name []byte) []byte {
	if len(name) <= 1 {
		return nil
	}
	return name[1+name[0]:]
}

func blockText(z *Zone) string { return fmt.Sprintf("%s (line %d of the Corefile)", z.Name, z.Line) }

// verdictTexts are what ACLs decide.
var verdictTexts = map[verdicts]string{
	allowed: "the client may ask", blocked: "the client gets REFUSED", filtered: "the client gets no records", dropped: "the client gets no reply",
	hidden: "the client gets NXDOMAIN",
}

// traceVerdict notes the verdict on r. more is what else led to it.
func (r *Request) traceVerdict(more string) {
	text := verdictTexts[r.verdicts&anyVerdict]
	if r.rule != "" {
		text += fmt.Sprintf(", by a rule for %s", r.rule)
	}
	outcome := Passes
	if r.verdicts&anyDenial != 0 {
		outcome = Answers
	}
	r.trace.add(r, stepOf[fromACL], outcome, strings.TrimSpace(text+" "+more))
}

// traceVetting notes that the reply may come to be denied: the names in it are judged.
func (r *Request) traceVetting() {
	if r.routes.views || r.routes.acls {
		r.mayBecome(fromACL)
	}
	if r.policy != nil {
		r.mayBecome(fromPolicy)
	}
	if r.routes.rpz {
		r.mayBecome(fromRPZ)
	}
}

// traceRewrite notes what the rules made of r's question.
func (r *Request) traceRewrite(c *rewrite.Change, matched bool, err error) {
	switch {
	case err != nil:
		r.note(stepRewrite, Answered, err.Error())
	case !matched:
		r.note(stepRewrite, notMine, "no rule matches")
	default:
		asked := "asks " + wire.Name(c.Name()).String() + " " + wire.TypeName(c.Type)
		if wire.Name(c.Name()) == wire.Name(r.Query.Name()) && c.Type == r.Query.Type {
			asked = "a rule changes the reply, the class or EDNS options"
		}
		for code := range wire.OptionCodes(c.Options()) {
			asked += fmt.Sprintf(", EDNS option %d for upstreams", code)
		}
		r.trace.add(r, stepRewrite, Takes, asked)
	}
}

// traceTemplate notes what the templates did. It returns true if they need an answer that takes a wait.
func (r *Request) traceTemplate(found template.Outcome, err error) (waits bool) {
	step := stepOf[fromTemplate]
	switch {
	case r.trace.waited:
		r.source = fromTemplate // what it will be
		r.note(step, WouldWait, "for the target of an alias")
		return true
	case found == template.NotMine && err == nil:
		r.note(step, notMine, "no template matches")
	case err != nil:
		r.note(step, Answered, err.Error())
	default:
		r.note(step, Answered, "")
	}
	return false
}

// absenceReporter is a view that can say why a name does not exist, "" if it can't.
type absenceReporter interface{ WhyAbsent(name []byte) string }

// traceView notes what a view of the cluster found.
func (r *Request) traceView(v External, from source, found kubernetes.Outcome, target wire.Name) {
	step, why := stepOf[from], ""
	if x, ok := v.(absenceReporter); ok {
		if why = x.WhyAbsent(r.Query.Name()); why != "" {
			why = ": " + why
		}
	}
	switch found {
	case kubernetes.Answered:
		if r.reply.Rcode() != wire.NXDomain {
			why = ""
		}
		r.note(step, Answered, replyText(&r.reply)+why)
	case kubernetes.NotMine:
		r.note(step, notMine, "the name is in none of its zones, or does not exist and falls through"+why)
	case kubernetes.Alias:
		r.note(step, Answered, "an alias to "+target.String())
	case kubernetes.Refused:
		r.note(step, Answered, "zone transfers are refused")
	case kubernetes.NotSynced, kubernetes.Incomplete, kubernetes.OverBudget: // see traceGap
	}
}

// gaps are what a view lacks.
var gaps = map[kubernetes.Outcome]string{
	kubernetes.NotSynced:  "the view has not received its first lists",
	kubernetes.Incomplete: "the view does not hold the objects that the answer needs",
}

// traceGap notes what becomes of r because of what a view lacks.
func (r *Request) traceGap(from source, found kubernetes.Outcome, o Outcome) {
	if r.trace == nil {
		return
	}
	text := gaps[found]
	switch o {
	case notMine:
		text += "; the cluster's own DNS knows the answer"
	case WouldWait:
		text += "; they are loaded from the API server"
		r.trace.view = true
	default:
		text += "; the query fails"
	}
	r.note(stepOf[from], o, text)
}

// replyText says what a reply has.
func replyText(r *wire.Reply) string {
	switch n := r.Count(wire.Answer); {
	case r.Rcode() == wire.NXDomain:
		return "the name does not exist"
	case r.Rcode() != wire.NoError:
		return r.Rcode().String()
	case n == 0:
		return "the name exists and has no such records"
	case n == 1:
		return "one record"
	default:
		return fmt.Sprintf("%d records", n)
	}
}

// traceCache notes what the cache has for r.
func (z *Zone) traceCache(r *Request, hit bool) {
	info, ok, inferred := z.inspectCache(r, hit)
	text := "not cached"
	switch {
	case inferred:
		text = info.Name.String() + " does not exist, and with nxdomain_cut no name below it does (RFC 8020)"
	case hit:
		text = replyText(&r.reply)
	case ok && info.Usable:
		text = "expired, kept for the case that the upstreams fail"
	case ok:
		text = "expired"
	}
	outcome := notMine
	if hit {
		outcome = Answered
	}
	r.note(stepOf[fromCache], outcome, text)
	if n := len(r.trace.steps); ok && n > 0 {
		r.trace.steps[n-1].Cached = &info
	}
}

// inspectCache returns the cache's entry for r; ok is false if there is none. inferred says
// that the entry is the denial of a name above r's, from which the hit follows.
func (z *Zone) inspectCache(r *Request, hit bool) (info cache.EntryInfo, ok, inferred bool) {
	info, ok = z.Cache.Inspect(&r.Query, r.now)
	if hit && !info.Usable {
		info, ok = z.Cache.DeniedBy(&r.Query, r.now)
		return info, ok, true
	}
	return info, ok, false
}

// tracePool notes which pool r is forwarded to.
func (z *Zone) tracePool(r *Request) {
	if r.pool == nil {
		if len(z.Forward) > 0 {
			r.note(stepOf[fromForward], notMine, "no forward directive takes the name")
		}
		return
	}
	r.trace.pool, r.trace.stopped, r.trace.view = r.pool, z.Loop.stops(r.pool), false
	text := fmt.Sprintf("an upstream of forward %s has to be asked", r.pool.From())
	if r.trace.stopped {
		text = fmt.Sprintf("forward %s", r.pool.From()) + ", which is stopped: the zone's queries come back from its upstreams"
	}
	r.note(stepOf[fromForward], Forward, text)
}
