package app

import (
	"context"
	"net/http"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// planWait is how long a request waits for a change of the rules that is being made.
const planWait = 5 * time.Second

// showPlan returns the node's network as the agent keeps it in place.
func (a *agent) showPlan(w http.ResponseWriter, r *http.Request) {
	var d netsetup.Description
	if a.net != nil {
		ctx, cancel := context.WithTimeout(r.Context(), planWait)
		defer cancel()
		var err error
		if d, err = a.net.Describe(ctx); err != nil {
			http.Error(w, "the rules are being changed; try again", http.StatusServiceUnavailable)
			return
		}
	}
	p := report.Plan{Header: a.header(), Network: options.NewNetwork(d)}
	p.Lookups = a.host.report()
	writeJSON(w, p)
}
