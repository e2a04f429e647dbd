package advice

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// defaultDomain is the cluster domain if no name shows another one.
const defaultDomain = "cluster.local."

// The places on the search path, by the domain that the resolver appends to a name.
const (
	underNamespace = iota // NAMESPACE.svc.DOMAIN
	underSvc              // svc.DOMAIN
	underDomain           // DOMAIN
	underNode             // a search domain of the node
	places
)

// lookups are numbers of wasted queries by the name that a pod looks up, and by the place on the search path.
type lookups map[string]*[places]float64

func (l lookups) add(name string, place int, queries float64) {
	if l[name] == nil {
		l[name] = new([places]float64)
	}
	l[name][place] += queries
}

// minQueries returns the least number of queries that n may have.
func minQueries(n *report.Name) float64 { return float64(n.Queries - min(n.Error, n.Queries)) }

// splitter removes from names the domains that search paths append.
type splitter struct {
	domain     string // of the cluster, with a final dot
	namespaces map[string]bool
	wasted     map[string]bool // parents of wasted names
}

func newSplitter(clients *report.Clients, waste *report.Names) *splitter {
	s := &splitter{domain: clusterDomain(waste), namespaces: make(map[string]bool), wasted: make(map[string]bool)}
	for i := range clients.Clients {
		s.namespaces[clients.Clients[i].Namespace] = true
	}
	for i := range waste.Names {
		s.wasted[waste.Names[i].Name] = true
	}
	return s
}

// clusterDomain returns the domain that follows svc in most wasted names.
func clusterDomain(waste *report.Names) string {
	queries := make(map[string]uint64)
	for i := range waste.Names {
		n := &waste.Names[i]
		if at := strings.LastIndex("."+n.Name, ".svc."); at >= 0 {
			queries[n.Name[at+len("svc."):]] += n.Queries
		}
	}
	domain, most := defaultDomain, uint64(0)
	for d, n := range queries {
		if n > most || n == most && d < domain {
			domain, most = d, n
		}
	}
	return domain
}

// split divides parent, the parent of a wasted name, into the labels before the domain of the search path, and
// the place of this domain. rest is "" if there are no such labels. namespace is the namespace in the domain, "" at the
// other places.
func (s *splitter) split(parent string) (rest string, place int, namespace string) {
	if rest, ok := strings.CutSuffix(parent, ".svc."+s.domain); ok {
		at := strings.LastIndexByte(rest, '.')
		if last := rest[at+1:]; s.namespaces[last] {
			return rest[:max(0, at)], underNamespace, last
		}
		return rest, underSvc, ""
	}
	if rest, ok := strings.CutSuffix(parent, "."+s.domain); ok && rest != "svc" {
		return rest, underDomain, ""
	}
	if parent == s.domain || strings.HasSuffix(parent, "."+s.domain) {
		return "", underDomain, ""
	}
	return parent, underNode, ""
}

// ofWorkloads returns the names that each workload looks up.
func (s *splitter) ofWorkloads(names *report.Names) map[report.WorkloadID]lookups {
	list := make(map[report.WorkloadID]lookups)
	var onNode []*report.Name // assigned last: they are matched with names that are looked up
	for i := range names.Names {
		n := &names.Names[i]
		_, parent, _ := strings.Cut(n.Name, ".")
		if n.Client == nil || n.Client.Kind != "pod" || !s.wasted[parent] {
			continue
		}
		if _, place, _ := s.split(parent); place == underNode {
			onNode = append(onNode, n)
			continue
		}
		w := idOfName(n)
		if list[w] == nil {
			list[w] = make(lookups)
		}
		s.addName(list[w], n)
	}
	for _, n := range onNode {
		list[idOfName(n)].addOnNode(n.Name, minQueries(n))
	}
	return list
}

// idOfName returns whose client asks for n; none if that is not known.
func idOfName(n *report.Name) report.WorkloadID {
	if n.Client == nil {
		return report.WorkloadID{}
	}
	return report.WorkloadID{Kind: n.Client.Kind, Namespace: n.Client.Namespace, WorkloadKind: n.Client.WorkloadKind, Workload: n.Client.Workload}
}

// addName adds to l the name that n, a wasted name below the cluster domain, begins with: its labels before the
// domain of the search path. A name below another namespace than that of n's client is left out.
func (s *splitter) addName(l lookups, n *report.Name) {
	label, parent, _ := strings.Cut(n.Name, ".")
	rest, place, namespace := s.split(parent)
	if rest != "" && (place != underNamespace || namespace == n.Client.Namespace) {
		l.add(label+"."+rest, place, minQueries(n))
	}
}

// addOnNode adds queries for name, which is below a search domain of the node, to the longest name of l that
// name begins with.
func (l lookups) addOnNode(name string, queries float64) {
	longest := ""
	for n := range l {
		if len(n) > len(longest) && strings.HasPrefix(name, n+".") {
			longest = n
		}
	}
	if longest != "" {
		l.add(longest, underNode, queries)
	}
}

// ofNamespaces returns the names that the pods of each namespace look up, with * as their first label. Waste at
// the other places does not show its namespace: it is divided in proportion to the waste of the same name at
// the namespaces' own places.
func (s *splitter) ofNamespaces(waste *report.Names) map[string]lookups {
	list, all := make(map[string]lookups), make(lookups)
	var onNode []*report.Name
	for i := range waste.Names {
		n := &waste.Names[i]
		rest, place, namespace := s.split(n.Name)
		switch {
		case place == underNode:
			onNode = append(onNode, n)
			continue
		case rest == "":
			continue
		case place == underNamespace:
			if list[namespace] == nil {
				list[namespace] = make(lookups)
			}
			list[namespace].add(rest, place, minQueries(n))
		}
		all.add(rest, place, minQueries(n))
	}
	for _, n := range onNode {
		all.addOnNode(n.Name, minQueries(n))
	}
	for namespace, l := range list {
		named := make(lookups)
		for name, own := range l {
			sum := all[name]
			for place := range places {
				named.add("*."+name, place, sum[place]*own[underNamespace]/sum[underNamespace])
			}
		}
		list[namespace] = named
	}
	return list
}

// total returns the number of wasted queries of names whose look-ups are known.
func (l lookups) total() (sum float64) {
	for _, n := range l {
		if n[underNamespace] > 0 {
			sum += n[underNamespace] + n[underSvc] + n[underDomain] + n[underNode]
		}
	}
	return sum
}

// keptNames is the number of names of a workload.
const keptNames = 32

// names returns the names with the most waste, with their counts multiplied by scale.
func (l lookups) names(scale float64) []report.WastedName {
	list := []report.WastedName{}
	for name, n := range l {
		if n[underNamespace] <= 0 {
			continue // a name that occurs at other places only, or a domain of the search path itself
		}
		list = append(list, report.WastedName{
			Name: name, Dots: strings.Count(name, "."),
			// A resolver tries the cluster domain only if the names before it do not exist.
			External: n[underDomain] >= n[underNamespace]/2,
			Lookups:  uint64(n[underNamespace] * scale),
			Waste:    uint64((n[underNamespace] + n[underSvc] + n[underDomain] + n[underNode]) * scale),
		})
	}
	return mostWasted(list)
}

// mostWasted returns the first of the names, those with the most waste first.
func mostWasted(list []report.WastedName) []report.WastedName {
	slices.SortFunc(list, func(a, b report.WastedName) int {
		return cmp.Or(cmp.Compare(b.Waste, a.Waste), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(keptNames, len(list))]
}

// Sum returns the sums of the names of two nodes.
func Sum(a, b []report.WastedName) []report.WastedName {
	list := slices.Clone(a)
	for _, n := range b {
		if i := slices.IndexFunc(list, func(w report.WastedName) bool { return w.Name == n.Name && w.External == n.External }); i >= 0 {
			list[i].Lookups += n.Lookups
			list[i].Waste += n.Waste
		} else {
			list = append(list, n)
		}
	}
	return mostWasted(list)
}
