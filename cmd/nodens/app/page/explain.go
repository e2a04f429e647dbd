package page

import (
	"fmt"
	"net/url"

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
	Error            string // why there is no explanation
	Asked            bool
	Client, Listener string
	Limited          string // "" if the client is not limited now
	Interface        string // "" without the kernel path, and if the client's is not known
	Search           string
	Questions        []explainedQuestion
}

// explainedQuestion is one query of an explanation.
type explainedQuestion struct {
	*report.ExplainedQuestion
	Number int
	Open   bool // its steps are shown
}

// ask sets the fields of e that depend on the agent.
func (e *explainPage) ask(source Source) {
	x, err := source.Explain(url.Values{"name": {e.Name}, "type": {e.Type}, "from": {e.From}})
	if err != nil {
		e.Error = err.Error()
		return
	}
	e.Asked, e.Client, e.Listener, e.Search = true, x.Client.Text(), x.Listener.Text(), x.SearchPath()
	e.Limited = x.Client.LimitedText()
	if k := x.Client.Kernel; k != nil {
		e.Interface = k.Text()
	}
	for i := range x.Questions {
		e.Questions = append(e.Questions, explainedQuestion{&x.Questions[i], i + 1, i == len(x.Questions)-1})
	}
}

// Cost says what the query waits for.
func (q explainedQuestion) Cost() string { return q.ExplainedQuestion.Cost(roundTrip) }

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
	var list []string
	for i := range q.Forward.Upstreams {
		u := &q.Forward.Upstreams[i]
		list = append(list, fmt.Sprintf("%s, %s, RTT %s", u.To, u.State(), roundTrip(u.RTTSeconds)))
	}
	return list
}
