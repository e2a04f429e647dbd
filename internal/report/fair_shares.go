package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FairShares say which clients are limited, how full the budgets of upstreams are, and which client loses a place
// to wait in first.
type FairShares struct {
	// Seconds is the time that the counts of Limited are of: 30 to 60, or less after a start.
	Seconds float64 `json:"seconds"`
	// Limited are the clients that were limited in this time, those with the most limited queries first,
	// MoreLimited how many others there are.
	Limited     []LimitedClient `json:"limited"`
	MoreLimited int             `json:"moreLimited"`
	// Waiting are the clients with the most queries that wait now, the highest number first. If all places are
	// taken, the first of them loses one.
	Waiting []WaitingClient `json:"waiting"`
	// Budgets are the upstreams with a budget, the one with the highest use first.
	Budgets []UpstreamBudget `json:"budgets"`
}

// LimitedClient is a pod or an address some of whose queries or connections were shed, refused or dropped because of a
// limit.
type LimitedClient struct {
	NameClient
	// Limited is the number of these queries and connections, Reasons are their numbers by the limit, as in the
	// metric nodens_client_limited_total.
	Limited uint64            `json:"limited"`
	Reasons map[string]uint64 `json:"reasons"`
}

// Text says how many queries were limited in so many seconds, and why.
func (c *LimitedClient) Text(seconds float64) string {
	return fmt.Sprintf("%d in the last %.0f s (%s)", c.Limited, seconds, ReasonsText(c.Reasons))
}

// ReasonsText returns the numbers of limited queries by reason, the highest first.
func ReasonsText(reasons map[string]uint64) string {
	list := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b))
	})
	for i, reason := range list {
		list[i] = fmt.Sprintf("%s %d", reason, reasons[reason])
	}
	return strings.Join(list, ", ")
}

// WaitingClient is a client with queries that wait: for an upstream or the cluster view, or for a budget.
type WaitingClient struct {
	NameClient
	Waiting int `json:"waiting"`
}

// Text returns who it is, and the number of queries.
func (c *WaitingClient) Text() string { return fmt.Sprintf("%s (%d waiting)", c.Label(), c.Waiting) }

// UpstreamBudget is the budget of an upstream.
type UpstreamBudget struct {
	To string `json:"to"`
	Budget
}

// Budget is the rate of queries that the agent sends to an upstream at most (max_rate). The counters are since the
// agent began to use the upstream.
type Budget struct {
	// LimitPerSecond is the rate, 0 while max_rate auto has found none. Auto: max_rate auto sets it.
	LimitPerSecond float64 `json:"limitPerSecond"`
	Auto           bool    `json:"auto"`
	// UsedShare is the share of LimitPerSecond that was sent in the last second. A burst raises it above 1.
	UsedShare float64 `json:"usedShare"`
	// Waiting is the number of queries that wait for the budget now, Waited of those that had to wait. Expired of
	// them waited until they failed. GivenUp is the number of hedged queries, refreshes and probes that were not
	// sent.
	Waiting int    `json:"waiting"`
	Waited  uint64 `json:"waited"`
	Expired uint64 `json:"expired"`
	GivenUp uint64 `json:"givenUp"`
	// Clients are those with the most queries that wait for the budget now, the highest number first.
	Clients []WaitingClient `json:"clients"`
}

// Limit says what the rate is.
func (b *Budget) Limit() string {
	text := "no limit found yet"
	if b.LimitPerSecond > 0 {
		text = fmt.Sprintf("%.0f/s", b.LimitPerSecond)
	}
	if b.Auto {
		text = "auto, " + text
	}
	return text
}

// Text says how full the budget is.
func (b *Budget) Text() string {
	if b.LimitPerSecond == 0 {
		return b.Limit()
	}
	text := fmt.Sprintf("%.0f%% of %s", 100*b.UsedShare, b.Limit())
	if b.Waiting > 0 {
		text += fmt.Sprintf("; %d queries wait", b.Waiting)
	}
	return text
}

// Label returns NAMESPACE/NAME of a pod, an address, or (host), (unknown) or (other).
func (c *NameClient) Label() string {
	switch {
	case c.Kind == "pod":
		return c.Namespace + "/" + c.Pod
	case c.Kind == "unknown" && c.Address != "":
		return c.Address
	}
	return "(" + c.Kind + ")"
}
