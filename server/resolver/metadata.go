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
	return clusterNameParts(z.Cluster.Origins(), r.Query.Name())[rest]
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

// clusterNameParts takes qname apart: [_PORT._PROTOCOL.|ENDPOINT.]SERVICE.NAMESPACE.svc, in the longest of origins
// that has it. The parts have CoreDNS's names; those that qname lacks are missing.
func clusterNameParts(origins []wire.Name, qname []byte) map[string]string {
	longest := longestOrigin(origins, qname)
	var labels []string // the last one first
	for rest := qname; longest != "" && len(rest) > len(longest); rest = rest[1+rest[0]:] {
		labels = slices.Insert(labels, 0, string(rest[1:1+rest[0]]))
	}
	if len(labels) > 0 && labels[0] != "svc" && labels[0] != "pod" || len(labels) > 5 {
		return map[string]string{"parse-error": "invalid query name"}
	}
	names := []string{"kind", "namespace", "service", "endpoint"}
	if len(labels) == 5 {
		names = []string{"kind", "namespace", "service", "protocol", "port-name"}
		labels[3], labels[4] = strings.TrimPrefix(labels[3], "_"), strings.TrimPrefix(labels[4], "_")
	}
	parts := make(map[string]string)
	for i, label := range labels {
		parts[names[i]] = label
	}
	return parts
}
