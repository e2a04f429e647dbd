package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// A workload is named as the cause of a load from this share of the queries on, if there are so many in a second.
const (
	dominantShare = 0.75
	dominantRate  = 50
)

// diagnose returns in one sentence what an operator should know first, and the command that shows more. clients and
// names, of the last minute, may be empty.
func diagnose(s *report.Status, clients *report.Clients, names *report.Names) (sentence, command string) {
	rejected := s.Config.Rejected && s.Config.LastRejected != nil
	switch v := s.View; {
	case rejected:
		return "The configuration in the files is invalid, and the one before stays in force.", "nodens check --conf " + s.Config.Path
	case v != nil && v.Error != "" && len(v.Gaps.Failing) > 0:
		return fmt.Sprintf("The API server does not serve the agent (%s): %s.", strings.Join(v.Gaps.Failing, ", "), cmp.Or(v.Fix, v.Error)), "nodens status -o wide"
	case s.Upstreams.Down > 0:
		return fmt.Sprintf("%d of %d upstreams are down.", s.Upstreams.Down, s.Upstreams.Total), "nodens top --by upstream"
	case len(s.Problems) > 0:
		text := s.Problems[0].String()
		return strings.ToUpper(text[:1]) + text[1:] + ".", "nodens status -o wide"
	}
	if c := dominant(clients); c != nil {
		what := ""
		if domain, share := commonDomain(names); share >= dominantShare {
			what = ", for names below " + strings.TrimSuffix(domain, ".")
		}
		return fmt.Sprintf("%.0f%% of the queries come from %s%s.", 100*c.Share, c.Label("workload"), what), "nodens top --by domain"
	}
	return fmt.Sprintf("No problem is known; %.1f queries/s, %s SERVFAIL.", s.Rates.QueriesPerSecond, percent(s.Rates.ServfailShare)), "nodens top"
}

// dominant returns the workload that most queries come from, nil if there is none.
func dominant(c *report.Clients) *report.Client {
	if len(c.Clients) == 0 || c.Clients[0].Share < dominantShare || c.Clients[0].QueriesPerSecond < dominantRate {
		return nil
	}
	return &c.Clients[0]
}

// domainRow is the sum of the names below a domain.
type domainRow struct {
	domain  string
	names   int
	queries uint64 // at least
}

// byDomain returns the domains that are the parents of names: those with the most queries first, then with the most names.
func byDomain(names []report.Name) []domainRow {
	var list []domainRow
	at := map[string]int{}
	for i := range names {
		_, domain, _ := strings.Cut(names[i].Name, ".")
		if domain == "" {
			domain = "."
		}
		j, ok := at[domain]
		if !ok {
			j = len(list)
			at[domain] = j
			list = append(list, domainRow{domain: domain})
		}
		list[j].names++
		list[j].queries += names[i].Queries - min(names[i].Queries, names[i].Error)
	}
	slices.SortStableFunc(list, func(a, b domainRow) int { return cmp.Or(cmp.Compare(b.queries, a.queries), b.names-a.names) })
	return list
}

// commonDomain returns the domain that most of the names in n are below, and its share of their queries.
func commonDomain(n *report.Names) (domain string, share float64) {
	var all uint64
	rows := byDomain(n.Names)
	for _, r := range rows {
		all += r.queries
	}
	if all == 0 {
		return "", 0
	}
	return rows[0].domain, float64(rows[0].queries) / float64(all)
}
