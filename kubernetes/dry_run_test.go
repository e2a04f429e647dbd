// Internal: it looks at the slice sources of a view.

package kubernetes

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestDryRun: an answer in a dry run has the outcome of a query's, and neither requests slices nor keeps them in
// view.
func TestDryRun(t *testing.T) {
	const name = "db.a.svc.cluster.local"
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.slice("a", "db", true, "10.1.0.1")
	dry := func(want Outcome) {
		t.Helper()
		var q wire.Query
		var r wire.Reply
		var b Budget
		b.SetDryRun()
		q.Parse(packQuery(t, name, dns.TypeA))
		r.Start(nil, &q)
		if got, _ := l.zone.Answer(&q, &r, &b); got != want {
			t.Errorf("outcome %d, want %d", got, want)
		}
	}
	dry(Incomplete)
	if n := len(l.view.scope.reconcileRequests); n != 0 {
		t.Errorf("a dry run has woken the slice manager")
	}
	l.reconcile()
	l.wantSources("")

	l.want(name, "?")
	l.reconcile()
	l.want(name, "10.1.0.1")
	l.wantSources("a")
	l.idle()
	dry(Answered)
	l.reconcile()
	l.wantSources("")
}
