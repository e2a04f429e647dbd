package page

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// maxExplainParameter bounds a parameter of an explanation, in bytes: a domain name with escapes.
const maxExplainParameter = 1024

// explainTypes are the record types that the form offers.
var explainTypes = []string{"A", "AAAA", "SRV", "PTR", "CNAME", "TXT", "MX", "NS", "SOA", "HTTPS", "SVCB"}

// explainPage is what the page with an explanation shows.
type explainPage struct {
	Node, Version    string
	Name, Type, From string
	Types            []string
	Error            string // what is wrong with the question
	Asked            bool
	Client, Listener string
	Search           string
	Questions        []explainedQuestion
}

// explainedQuestion is one query of an explanation.
type explainedQuestion struct {
	*report.ExplainedQuestion
	Number int
	Open   bool // its steps are shown
}

func (p *Page) serveExplain(w http.ResponseWriter, r *http.Request) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := p.source.Status()
	e := explainPage{
		Node: cmp.Or(s.Node, "unknown node"), Version: s.Version, Types: explainTypes,
		Name: values.Get("name"), Type: strings.ToUpper(cmp.Or(values.Get("type"), "A")), From: values.Get("from"),
	}
	for _, text := range []string{e.Name, e.Type, e.From} {
		if len(text) > maxExplainParameter {
			http.Error(w, fmt.Sprintf("a parameter is too long; give at most %d bytes", maxExplainParameter), http.StatusBadRequest)
			return
		}
	}
	if e.Name != "" {
		e.ask(p.source)
	}
	p.render(w, "explain", e)
}

// ask sets the fields of e that depend on the agent.
func (e *explainPage) ask(source Source) {
	x, err := source.Explain(url.Values{"name": {e.Name}, "type": {e.Type}, "from": {e.From}})
	if err != nil {
		e.Error = err.Error()
		return
	}
	e.Asked, e.Client = true, x.Client.Address
	if x.Client.Pod != "" {
		e.Client = fmt.Sprintf("%s/%s, %s", x.Client.Namespace, x.Client.Pod, x.Client.Address)
	}
	e.Listener = fmt.Sprintf("%s, %s over %s", x.Listener.Address, x.Listener.Transport, x.Listener.Protocol)
	if len(x.Search) > 0 {
		e.Search = fmt.Sprintf("%s (ndots %d)", strings.Join(x.Search, " "), x.Ndots)
	}
	for i := range x.Questions {
		e.Questions = append(e.Questions, explainedQuestion{&x.Questions[i], i + 1, i == len(x.Questions)-1})
	}
}

// AnsweredBy says which step makes the reply.
func (q explainedQuestion) AnsweredBy() string {
	text := cmp.Or(q.Source, "server")
	for _, other := range q.Alternatives {
		text += " or " + cmp.Or(other, "server")
	}
	return text
}

// Reply says what the reply is.
func (q explainedQuestion) Reply() string {
	text := q.Rcode
	switch {
	case q.NoReply:
		return "none"
	case q.Rcode == "":
		return "not known"
	case q.Rcode == "NOERROR" && len(q.Answers) == 0:
		text = "NOERROR, no records"
	}
	if q.TTLSeconds != nil {
		text += fmt.Sprintf(", TTL %d s", *q.TTLSeconds)
	}
	return text
}

// Cost says what the query waits for.
func (q explainedQuestion) Cost() string {
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

// Block says which server block takes the query.
func (q explainedQuestion) Block() string {
	switch {
	case q.Zone == nil:
		return "no server block takes it"
	case q.Zone.View != "":
		return fmt.Sprintf("%s, view %s, in line %d of the Corefile", q.Zone.Name, q.Zone.View, q.Zone.Line)
	}
	return fmt.Sprintf("%s, in line %d of the Corefile", q.Zone.Name, q.Zone.Line)
}

// Candidates are the upstreams in the order in which they would be tried.
func (q explainedQuestion) Candidates() []string {
	if q.Forward == nil {
		return nil
	}
	if q.Forward.Stopped {
		return []string{"none: forwarding has stopped because queries come back"}
	}
	var list []string
	for _, u := range q.Forward.Upstreams {
		text := u.To + ", RTT " + roundTrip(u.RTTSeconds)
		if u.Down {
			text += ", down"
		}
		if u.Suspect {
			text += ", suspect"
		}
		list = append(list, text)
	}
	return list
}

// Entries are the cached answers for the name.
func (q explainedQuestion) Entries() []string {
	var list []string
	for i := range q.Cached {
		c := &q.Cached[i]
		text := fmt.Sprintf("%s %s: %s, %s", c.Name, c.Type, c.Rcode, c.Kind)
		if c.AgeSeconds != nil {
			text += fmt.Sprintf(", %.0f s old", *c.AgeSeconds)
		}
		list = append(list, text+fmt.Sprintf(", TTL %.0f s, expired for %.0f s more", c.TTLSeconds, c.StaleSeconds))
	}
	return list
}
