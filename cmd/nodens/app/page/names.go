package page

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// nameTopic is a table of names, and its topic in [report.Names].
type nameTopic struct{ id, topic, caption, empty string }

// nameTopics are the tables of names.
var nameTopics = []nameTopic{
	{"names", "queries", "Names", "No queries in this window."},
	{"waste", "waste", "Search-path waste, by parent", "No names that only a search path makes."},
	{"failing", "failing", "Failing names", "No SERVFAIL in this window."},
	{"slow", "slow", "Slow names", "No query took 100 ms or longer."},
	{"client", "client", "Names by client", "No queries in this window."},
}

// namesTable returns the table of a topic.
func namesTable(source Source, topic nameTopic, p parameters) table {
	t := tableOf[report.Name]{
		id: topic.id, caption: topic.caption, empty: topic.empty, order: "queries",
		search: func(n *report.Name) []string {
			if n.Client == nil {
				return []string{n.Name}
			}
			c := n.Client
			return []string{n.Name, c.Namespace + "/" + c.Pod, c.Namespace + "/" + c.Workload, c.Address}
		},
	}
	all, err := source.Names(topic.topic, p.Window, t.limit(p))
	if err != nil {
		t.empty = err.Error()
		return t.build(nil, 0, p)
	}
	t.columns = nameColumns(topic, all)
	out := t.build(all.Names, all.More, p)
	out.Wide = topic.id == "client"
	if all.KernelSample > 0 {
		out.Note = fmt.Sprintf("One in %d answers from the kernel is counted, with that weight.", all.KernelSample)
	}
	return out
}

// nameColumns returns the columns of the table of a topic.
func nameColumns(topic nameTopic, all *report.Names) []column[report.Name] {
	list := []column[report.Name]{{key: "name", title: "Name", help: "what is asked for; the link explains the answer", text: func(n *report.Name) cell {
		return cell{Text: n.Name, Href: explainLink(n.Name, nameClient(n.Client))}
	}}}
	switch topic.id {
	case "waste":
		list[0].title, list[0].help = "Parent", "the parent of names that only a search path makes"
		list[0].text = func(n *report.Name) cell { return cell{Text: "*." + n.Name} }
	case "client":
		list = append(list, column[report.Name]{key: "client", title: "Client", help: "who asks", text: func(n *report.Name) cell { return cell{Text: nameClient(n.Client)} }})
	case "failing":
		list = append(list, column[report.Name]{key: "cause", title: "Cause", help: "why the queries fail", text: func(n *report.Name) cell { return cell{Text: n.Cause} }})
	case "slow":
		list = append(list, column[report.Name]{key: "cause", title: "Waited for", help: "where most of the time went", text: func(n *report.Name) cell { return cell{Text: n.Cause} }})
	}
	return append(list,
		column[report.Name]{"queries", "QPS", "queries per second, too high by the error at most",
			func(n *report.Name) cell { return cell{Text: perSecond(n.QueriesPerSecond)} }, func(n *report.Name) float64 { return float64(n.Queries) }},
		column[report.Name]{"error", "± QPS", "how much too high the rate may be",
			func(n *report.Name) cell { return cell{Text: perSecond(report.PerSecond(n.Error, all.WindowSeconds))} }, func(n *report.Name) float64 { return float64(n.Error) }},
		column[report.Name]{"share", "Share", "of the queries of this table",
			func(n *report.Name) cell {
				return cell{Text: percent(n.Share), HasBar: true, Bar: int(100*n.Share + 0.5)}
			}, func(n *report.Name) float64 { return n.Share }},
	)
}

// nameClient returns who c is, "" for nil.
func nameClient(c *report.NameClient) string {
	if c == nil {
		return ""
	}
	return c.Label()
}

// explainLink returns a link to the explanation of a name, as client asks for it.
func explainLink(name, client string) string {
	values := url.Values{"name": {name}}
	if client != "" && !strings.HasPrefix(client, "(") {
		values.Set("from", client)
	}
	return "/explain?" + values.Encode()
}
