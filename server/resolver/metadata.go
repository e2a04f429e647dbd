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
	return parseClusterName(z.Cluster.Origins(), r.Query.Name()).value(rest)
}

// clusterName is a name of the cluster zone, in CoreDNS's parts.
type clusterName struct {
	kind, namespace, service, endpoint, port, protocol string
	invalid                                            bool
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

// parseClusterName takes qname apart: [_PORT._PROTOCOL.|ENDPOINT.]SERVICE.NAMESPACE.svc, in the longest of
// origins that has it.
func parseClusterName(origins []wire.Name, qname []byte) (n clusterName) {
	longest := longestOrigin(origins, qname)
	var labels []string // the last one first
	for rest := qname; longest != "" && len(rest) > len(longest); rest = rest[1+rest[0]:] {
		labels = slices.Insert(labels, 0, string(rest[1:1+rest[0]]))
	}
	if len(labels) == 0 {
		return n
	}
	if kind := labels[0]; kind != "svc" && kind != "pod" || len(labels) > 5 {
		return clusterName{invalid: true}
	}
	labels = append(labels, "", "") // the namespace and the Service may be missing
	n.kind, n.namespace, n.service = labels[0], labels[1], labels[2]
	switch labels = labels[3:]; len(labels) - 2 {
	case 1:
		n.endpoint = labels[0]
	case 2:
		n.protocol, n.port = strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
	}
	return n
}

// value returns the part with one of CoreDNS's names.
func (n clusterName) value(name string) string {
	switch name {
	case "kind":
		return n.kind
	case "namespace":
		return n.namespace
	case "service":
		return n.service
	case "endpoint":
		return n.endpoint
	case "port-name":
		return n.port
	case "protocol":
		return n.protocol
	case "parse-error":
		if n.invalid {
			return "invalid query name"
		}
	}
	return ""
}
