package app

import "github.com/nodens-dns/nodens/upstream"

// The metrics by upstream with max_rate.
var (
	budgetLimit   = gauge("nodens_upstream_budget_limit", "Queries per second that the upstream gets at most (max_rate); 0 while max_rate auto has found no limit.", "to")
	budgetUsed    = gauge("nodens_upstream_budget_used_ratio", "Share of nodens_upstream_budget_limit that was sent in the last second. A burst raises it above 1.", "to")
	budgetWaiting = gauge("nodens_upstream_budget_waiting", "Queries that wait because of max_rate.", "to")
	budgetExpired = counter("nodens_upstream_budget_expired_total", "Queries that failed, or got an expired answer, because they waited for max_rate for the read_timeout.", "to")
	budgetGivenUp = counter("nodens_upstream_budget_given_up_total", "Hedged queries, health probes and refreshes that were not sent because of max_rate.", "to")
)

// budget puts the metrics of an upstream's budget; nil is none.
func (s scrape) budget(to string, b *upstream.BudgetStats) {
	if b == nil {
		return
	}
	s.put(budgetLimit, b.Limit, to)
	s.put(budgetUsed, b.Used, to)
	s.put(budgetWaiting, float64(b.Waiting), to)
	s.put(budgetExpired, float64(b.Expired), to)
	s.put(budgetGivenUp, float64(b.GivenUp), to)
}
