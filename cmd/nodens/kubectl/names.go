package kubectl

import (
	"cmp"
	"context"
	"math"

	"github.com/nodens-dns/nodens/internal/report"
)

// keptNames bounds the names that are kept while replies arrive, shownNames the names that are returned.
const (
	keptNames  = 8192
	shownNames = 256
)

// nameKey identifies a row. Rows of several nodes with the same key are added up.
type nameKey struct {
	name, cause string
	client      report.NameClient
}

func keyOfName(n *report.Name) nameKey {
	key := nameKey{name: n.Name, cause: n.Cause}
	if n.Client != nil {
		key.client = *n.Client
	}
	return key
}

// Names asks all agents for the names of a topic, with the topic bypass for the other DNS servers that pods ask, and with denied for names that DNSPolicies deny.
func Names(ctx context.Context, c *Cluster, topic, window string) (*report.ClusterNames, error) {
	m := merger[nameKey, report.Name]{key: keyOfName, order: orderNames, merge: func(sum, n *report.Name) {
		sum.Queries, sum.Error, sum.QueriesPerSecond = sum.Queries+n.Queries, sum.Error+n.Error, sum.QueriesPerSecond+n.QueriesPerSecond
		sum.Deviation = uint64(math.Round(math.Hypot(float64(sum.Deviation), float64(n.Deviation)))) // variances add up
	}}
	r := &report.ClusterNames{Topic: topic, Window: window, Names: []report.Name{}}
	args := []string{"top", "--by", "name", "--topic", topic, "--window", window, "-o", "json"}
	if topic == "bypass" || topic == "denied" {
		args = []string{"top", "--by", topic, "--window", window, "-o", "json"}
	}
	dropped := uint64(0) // the highest number of queries of a name that was not kept
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.Names]{
		Args:   args,
		Serves: func(a, b *report.Names) int { return cmp.Compare(a.Queries, b.Queries) },
		Each: func(_ string, reply *report.Names) {
			r.Queries, r.Floor, r.More = r.Queries+reply.Queries, r.Floor+reply.Floor, r.More+reply.More
			r.KernelSample = max(r.KernelSample, reply.KernelSample)
			for _, n := range reply.Names {
				m.add(n)
			}
			if len(m.rows) > 2*keptNames {
				list := m.keep(keptNames)
				r.More, dropped = r.More+len(list), max(dropped, list[0].Queries)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	r.Floor += dropped
	r.More += len(m.keep(shownNames))
	for _, n := range m.rows {
		if r.Queries > 0 {
			n.Share = min(1, float64(n.Queries)/float64(r.Queries))
		}
		r.Names = append(r.Names, n)
	}
	return r, nil
}

// orderNames compares names by their queries, the highest number first.
func orderNames(a, b *report.Name) int {
	x, y := keyOfName(a).client, keyOfName(b).client
	return cmp.Or(cmp.Compare(b.Queries, a.Queries), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cause, b.Cause),
		cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Address, y.Address), cmp.Compare(x.Kind, y.Kind))
}
