package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// keptNames bounds the names that are kept while replies arrive, shownNames the names that are returned.
const (
	keptNames  = 8192
	shownNames = 256
)

// Names asks all agents for the names of a topic.
func Names(ctx context.Context, c *Cluster, topic, window string) (*report.ClusterNames, error) {
	m := nameMerge{ClusterNames: report.ClusterNames{Topic: topic, Window: window}, names: make(map[nameKey]*report.Name)}
	cluster, err := Ask(ctx, c, &Question[report.Names]{
		Args:   []string{"top", "--by", "name", "--topic", topic, "--window", window, "-o", "json"},
		Serves: func(a, b *report.Names) int { return cmp.Compare(a.Queries, b.Queries) },
		Each:   m.add,
	})
	if err != nil {
		return nil, err
	}
	m.Cluster = cluster
	return m.result(), nil
}

// nameKey identifies a row. Rows of several nodes with the same key are added up.
type nameKey struct {
	name, cause string
	client      report.NameClient
}

// nameMerge adds up the replies of the nodes.
type nameMerge struct {
	report.ClusterNames
	names   map[nameKey]*report.Name
	dropped uint64 // the highest number of queries of a dropped name
}

func (m *nameMerge) add(_ string, r *report.Names) {
	m.Queries += r.Queries
	m.Floor += r.Floor
	m.KernelSample = max(m.KernelSample, r.KernelSample)
	m.More += r.More
	for i := range r.Names {
		n := &r.Names[i]
		key := nameKey{name: n.Name, cause: n.Cause}
		if n.Client != nil {
			key.client = *n.Client
		}
		if old := m.names[key]; old != nil {
			old.Queries, old.Error, old.QueriesPerSecond = old.Queries+n.Queries, old.Error+n.Error, old.QueriesPerSecond+n.QueriesPerSecond
			continue
		}
		m.names[key] = n
	}
	if len(m.names) > 2*keptNames {
		m.drop()
	}
}

// drop keeps the names with the most queries.
func (m *nameMerge) drop() {
	list := m.sorted()
	for _, n := range list[keptNames:] {
		m.dropped = max(m.dropped, n.Queries)
		key := nameKey{name: n.Name, cause: n.Cause}
		if n.Client != nil {
			key.client = *n.Client
		}
		delete(m.names, key)
	}
	m.More += len(list) - keptNames
}

func (m *nameMerge) sorted() []*report.Name {
	list := make([]*report.Name, 0, len(m.names))
	for _, n := range m.names {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *report.Name) int {
		return cmp.Or(cmp.Compare(b.Queries, a.Queries), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cause, b.Cause), compareClients(a.Client, b.Client))
	})
	return list
}

func compareClients(a, b *report.NameClient) int {
	if a == nil || b == nil {
		return 0
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Kind, b.Kind))
}

func (m *nameMerge) result() *report.ClusterNames {
	list := m.sorted()
	r := &m.ClusterNames
	r.Floor += m.dropped
	r.More += max(0, len(list)-shownNames)
	r.Names = make([]report.Name, 0, min(shownNames, len(list)))
	for _, n := range list[:min(shownNames, len(list))] {
		if r.Queries > 0 {
			n.Share = min(1, float64(n.Queries)/float64(r.Queries))
		}
		r.Names = append(r.Names, *n)
	}
	return r
}
