package report

import (
	"cmp"
	"fmt"
	"strings"
)

// ownSource is the source of replies that the agent makes without any directive.
const ownSource = "server"

// AnsweredBy names the step that makes the reply, and the steps that may make it instead.
func (q *ExplainedQuestion) AnsweredBy() string {
	text := cmp.Or(q.Source, ownSource)
	for _, other := range q.Alternatives {
		text += " or " + cmp.Or(other, ownSource)
	}
	return text
}

// AnsweredBy names the step that has made the reply.
func (a *AskedQuestion) AnsweredBy() string { return cmp.Or(a.Source, ownSource) }

// Cost says what the query waits for. roundTrip writes a time in milliseconds.
func (q *ExplainedQuestion) Cost(roundTrip func(seconds float64) string) string {
	switch q.Waits {
	case "view":
		return "loads objects from the API server"
	case "upstream":
		if f := q.Forward; f != nil && len(f.Upstreams) > 0 && f.Upstreams[0].RTTSeconds > 0 {
			return "asks an upstream, about " + roundTrip(f.Upstreams[0].RTTSeconds)
		}
		return "asks an upstream"
	}
	return "none"
}

// Result says what the reply is.
func (r *ExplainedReply) Result() string {
	switch {
	case r.NoReply:
		return "none"
	case r.Rcode == "":
		return "not known"
	case r.Rcode == "NOERROR" && len(r.Answers) == 0:
		return "NOERROR, no records"
	}
	return r.Rcode
}

// ResultTTL is Result with the TTL.
func (r *ExplainedReply) ResultTTL() string {
	text := r.Result()
	if r.TTLSeconds != nil {
		text += fmt.Sprintf(", TTL %d s", *r.TTLSeconds)
	}
	return text
}

// Text describes the listener.
func (l *ExplainedListener) Text() string {
	return fmt.Sprintf("%s, %s over %s", l.Address, l.Transport, l.Protocol)
}

// Text describes the client.
func (c *ExplainedClient) Text() string {
	if c.Pod == "" {
		return c.Address
	}
	return fmt.Sprintf("%s, pod %s/%s", c.Address, c.Namespace, c.Pod)
}

// LimitedText says that the client is limited now; "" if it is not.
func (c *ExplainedClient) LimitedText() string {
	if len(c.Limited) == 0 {
		return ""
	}
	return fmt.Sprintf("%s in the last %.0f s; more queries may be refused, dropped or shed", ReasonsText(c.Limited), c.LimitedSeconds)
}

// SearchPath describes the search path of the client, "" without one.
func (e *Explanation) SearchPath() string {
	if len(e.Search) == 0 {
		return ""
	}
	return fmt.Sprintf("%s (ndots %d)", strings.Join(e.Search, " "), e.Ndots)
}

// Text describes the directive.
func (f *ExplainedForward) Text() string {
	text := fmt.Sprintf("%s, policy %s", f.From, f.Policy)
	if f.Stopped {
		text += "; stopped, because the zone's queries come back from its upstreams"
	}
	return text
}

// State returns up, down or suspect.
func (u *ExplainedUpstream) State() string { return upstreamState(u.Down, u.Suspect) }

// Text describes the entry, except for its name.
func (e *CacheEntry) Text() string {
	text := e.Type
	if e.DNSSEC {
		text += " with DO"
	}
	if e.CheckingDisabled {
		text += " with CD"
	}
	text += ": " + e.Rcode + ", "
	if text += fmt.Sprintf("%d record", e.Answers); e.Answers != 1 {
		text += "s"
	}
	if e.Subtree {
		text += ", also for all names below"
	}
	return text + "; " + e.Times()
}

// Times says how old the entry is, and how long it stays.
func (e *CacheEntry) Times() string {
	age := "age not known"
	if e.AgeSeconds != nil {
		age = fmt.Sprintf("%.0f s old", *e.AgeSeconds)
	}
	text := fmt.Sprintf("%s, %.0f s left", age, e.TTLSeconds)
	if e.TTLSeconds == 0 {
		text = age + ", expired"
	}
	if e.StaleSeconds > 0 {
		text += fmt.Sprintf(", may be served for %.0f s", e.StaleSeconds)
	}
	return text
}

// Texts describes the copies, and why there can be none. It returns one text at least.
func (k *ExplainedKernel) Texts() (list []string) {
	for i := range k.Copies {
		list = append(list, k.Copies[i].Text())
	}
	switch {
	case k.Excluded != "":
		return append(list, "no copy: "+k.Excluded)
	case len(list) == 0:
		return []string{"no copy"}
	}
	return list
}

// Text describes the copy, except for its question and listener.
func (c *KernelCopy) Text() string {
	text := "copy for queries without flags"
	if len(c.Flags) > 0 {
		text = "copy for queries with " + strings.Join(c.Flags, ", ")
	}
	if c.OneNamespace {
		text += ", from pods of one namespace"
	}
	text += ": " + c.Rcode + ", "
	switch {
	case c.State != "valid":
		text += c.State
	case c.TTLSeconds != nil:
		text += fmt.Sprintf("%.0f s left", *c.TTLSeconds)
	default:
		text += "until the cluster changes"
	}
	if c.IdleSeconds == nil {
		return text + "; not given yet"
	}
	return text + fmt.Sprintf("; last given %.0f s ago", *c.IdleSeconds)
}

// kernelResults say what comes of queries with a valid copy, by [KernelClient.Result].
var kernelResults = map[string]string{
	"answered":            "the kernel answers",
	"client_recheck":      "the agent answers the next query, then the kernel",
	"client_moved":        "the agent answers; the address has also asked on another interface, or its queries are being watched",
	"unknown_client":      "the agent answers; it has not replied to the client in the last two seconds",
	"heartbeat_expired":   "the agent answers; the programs have no heartbeat",
	"client_limit":        "the kernel drops the query; the client exceeds --client-limit",
	"client_limit_passed": "the agent refuses or truncates; the client exceeds --client-limit",
}

// Text says who answers the client's queries.
func (c *KernelClient) Text() string {
	where := cmp.Or(c.Interface, "an interface that is gone")
	if !c.Answering {
		return where + "; the agent answers, because other programs or filters are on the interface"
	}
	return where + "; " + cmp.Or(kernelResults[c.Result], c.Result)
}
