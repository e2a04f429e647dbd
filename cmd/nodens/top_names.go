package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/report"
)

// nameTopics say in the line above the table which queries are counted, by --topic.
var nameTopics = map[string]string{
	"queries":   "queries",
	"client":    "queries",
	"waste":     "NXDOMAIN for names that only a search path makes",
	"failing":   "queries with SERVFAIL",
	"slow":      "slow queries",
	topicBypass: "queries of pods to other DNS servers",
	topicDenied: "queries that DNSPolicies and rpz deny, without names that only a search path makes",
}

// topicBypass is the value of --by, and the topic of /names, for packets to other DNS servers.
const topicBypass = "bypass"

// topicDenied is the value of --by, and the topic of /names, for names that are denied.
const topicDenied = "denied"

// hasClients are the topics whose names have a client.
func hasClients(topic string) bool {
	return topic == "client" || topic == topicBypass || topic == topicDenied
}

// askNames asks for the table by name or by domain.
func askNames(ctx context.Context, f *topFlags) (*topTable, error) {
	if f.cluster != nil {
		n, err := kubectl.Names(ctx, f.cluster, f.topic, f.window)
		if err != nil {
			return nil, err
		}
		return nameTable(f, n, n, nodesText(n.Nodes), "", "counts may be too low by %d, and names without a row have at most as many"), nil
	}
	n := new(report.Names)
	if err := f.socket.ask(ctx, http.MethodGet, "/names", url.Values{"topic": {f.topic}, "window": {f.window}}, n); err != nil {
		return nil, err
	}
	one := &report.ClusterNames{
		Cluster: report.Cluster{Nodes: 1}, Topic: n.Topic, Queries: n.Queries, Floor: n.Floor, KernelSample: n.KernelSample, Names: n.Names, More: n.More,
	}
	return nameTable(f, n, one, "node "+cmp.Or(n.Node, "unknown"), fmt.Sprintf(" in the last %.0f s", n.WindowSeconds), "names without a row: at most %d each"), nil
}

// nameTable returns the table of n. where and window begin and end the line above it; floor says what n.Floor means.
func nameTable(f *topFlags, reply any, n *report.ClusterNames, where, window, floor string) *topTable {
	t := &topTable{reply: reply, cluster: n.Cluster, head: fmt.Sprintf("%s: %d %s%s", where, n.Queries, nameTopics[n.Topic], window)}
	if n.KernelSample > 0 {
		t.head += fmt.Sprintf("; of the answers from the kernel, 1 in %d is sampled", n.KernelSample)
	}
	if n.Floor > 0 {
		t.head += fmt.Sprintf("; "+floor, n.Floor)
	}
	if f.by == "domain" {
		list := byDomain(n.Names)
		rows := firstRows(list, f.rows)
		t.cells, t.more = cells(domainColumns, rows), len(list)-len(rows)
		return t
	}
	rows := firstRows(n.Names, f.rows)
	t.cells, t.more = cells(nameColumns(n.Topic, f.output.Wide()), rows), len(n.Names)-len(rows)+n.More
	return t
}

var domainColumns = []column[domainRow]{
	{"QUERIES", func(r *domainRow) string { return fmt.Sprintf("≥%d", r.queries) }},
	{"NAMES", func(r *domainRow) string { return fmt.Sprint(r.names) }},
	{"DOMAIN", func(r *domainRow) string { return r.domain }},
}

// nameColumns returns the columns of the names of a topic.
func nameColumns(topic string, wide bool) []column[report.Name] {
	type row = report.Name
	return slices.Concat(
		when(hasClients(topic), column[row]{"POD", func(n *row) string { return nameClient(n).Label() }}),
		when(topic == topicBypass, column[row]{"PROTOCOL", func(n *row) string { return n.Cause }}),
		when(topic == "failing" || topic == "slow", column[row]{"CAUSE", func(n *row) string { return n.Cause }}),
		[]column[row]{
			{"QPS", func(n *row) string { return tenths(n.QueriesPerSecond) }},
			{"SHARE", func(n *row) string { return percent(n.Share) }},
			{"QUERIES", func(n *row) string { return fmt.Sprint(n.Queries) }},
			{"ERROR", func(n *row) string {
				bound := fmt.Sprintf("≤%d", n.Error)
				if n.Deviation > 0 {
					bound += fmt.Sprintf(" ±%d", n.Deviation)
				}
				return bound
			}},
			{cmp.Or(map[string]string{topicBypass: "SERVER"}[topic], "NAME"), func(n *row) string {
				if topic == "waste" {
					return "*." + strings.TrimPrefix(n.Name, ".")
				}
				return n.Name
			}},
		},
		when(hasClients(topic) && wide, column[row]{"ADDRESS", func(n *row) string { return cmp.Or(nameClient(n).Address, "-") }}),
	)
}

// nameClient returns the client of a name.
func nameClient(n *report.Name) *report.NameClient {
	if n.Client == nil {
		return new(report.NameClient)
	}
	return n.Client
}
