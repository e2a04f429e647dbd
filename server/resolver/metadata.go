package resolver

import (
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Metadata are the names of CoreDNS's metadata: what is known of a query besides its message. Their values
// are computed when they are asked for.

// clientLabel begins the names of the labels of the client's pod.
const clientLabel = "kubernetes/client-label/"

// metadata returns the value that the name has for r in z; "" is none. The names that only a
// finished request has are empty before.
func (r *Request) metadata(z *Zone, name string) string {
	if !slices.ContainsFunc(z.Metadata, func(zone wire.Name) bool { return wire.Under(r.Query.Name(), zone) }) {
		return ""
	}
	plugin, rest, _ := strings.Cut(name, "/")
	switch {
	case plugin == "kubernetes" && z.Cluster != nil:
		return r.clusterMetadata(z, name, rest)
	case name == "view/name":
		return z.View.Name()
	case name == "forward/upstream":
		if a := r.asked(); a != nil {
			return a.Server.String()
		}
	}
	return ""
}

// clusterMetadata returns the value of a name of the kubernetes directive; rest is the name without its
// first word.
func (r *Request) clusterMetadata(z *Zone, name, rest string) string {
	switch rest {
	case "client-namespace", "client-pod-name":
		_, pod := r.owner()
		if rest == "client-namespace" {
			return pod.Namespace
		}
		return pod.Name
	}
	if key, ok := strings.CutPrefix(name, clientLabel); ok {
		if _, pod := r.owner(); pod.UID != "" && r.routes.PodLabel != nil {
			return r.routes.PodLabel(r.Client.Addr().Unmap().WithZone(""), pod.UID, key)
		}
		return ""
	}
	return z.clusterNameParts(r.Query.Name())[rest]
}

// longestOrigin returns the longest of origins that has qname, "" for none.
func longestOrigin(origins []wire.Name, qname []byte) (longest wire.Name) {
	for _, o := range origins {
		if wire.Under(qname, o) && len(o) > len(longest) {
			longest = o
		}
	}
	return longest
}

// clusterNameParts takes qname apart, by the longest origin of the cluster that has it. The parts have CoreDNS's names; those that qname
// lacks are missing.
func (z *Zone) clusterNameParts(qname []byte) map[string]string {
	longest := longestOrigin(z.Cluster.Origins(), qname)
	var labels []string // the last one first
	for rest := qname; longest != "" && len(rest) > len(longest); rest = rest[1+rest[0]:] {
		labels = slices.Insert(labels, 0, string(rest[1:1+rest[0]]))
	}
	var names []string
	if len(labels) == 0 || labels[0] == "svc" || labels[0] == "pod" {
		names = z.partNames(longest, labels)
	}
	if names == nil {
		return map[string]string{"parse-error": "invalid query name"}
	}
	parts := make(map[string]string)
	for i, name := range names {
		parts[name] = labels[i]
	}
	return parts
}

// partNames returns the names of the first labels, the last one of a name below origin first, which it makes the values; nil if there are
// too many labels.
func (z *Zone) partNames(origin wire.Name, labels []string) []string {
	names := []string{"kind", "namespace", "service", "endpoint"}
	imports := slices.Contains(z.Multicluster, origin)
	switch n := len(labels); {
	case n < 5:
		return names[:n]
	case n > 5 && !imports && z.isZonal(labels):
		slices.Reverse(labels[5:])
		labels[3] = strings.Join(labels[5:], ".")
		return append(names[:3], "zone")
	case n > 5:
		return nil
	case imports && labels[3][0] != '_' && labels[4][0] != '_':
		return append(names[:3], "cluster", "endpoint")
	}
	labels[3], labels[4] = strings.TrimPrefix(labels[3], "_"), strings.TrimPrefix(labels[4], "_")
	return append(names[:3], "protocol", "port-name")
}

// isZonal reports whether labels, six or more with the last one first, are those of ZONE.pin._zone.SERVICE.NAMESPACE.svc, or of the
// same with prefer. ZONE may have several.
func (z *Zone) isZonal(labels []string) bool {
	return z.Zonal && labels[0] == "svc" && labels[3] == "_zone" && (labels[4] == "pin" || labels[4] == "prefer")
}
