package kubernetes

import discoveryv1 "k8s.io/api/discovery/v1"

// A multicluster zone has the names of the Multi-Cluster Services API (KEP-1645), made
// from ServiceImports and their EndpointSlices. They have an index of their own, since a
// ServiceImport and a Service may have the same name:
//
//	<service>.<namespace>.svc.<zone>                      the cluster set's IPs, or all endpoints
//	_<port>._<proto>.<service>.<namespace>.svc.<zone>
//	<hostname>.<cluster>.<service>.<namespace>.svc.<zone> an endpoint
//
// Their addresses have no reverse names.

// The labels that say whose an import's slices are.
const (
	labelImport  = "multicluster.kubernetes.io/service-name"
	labelCluster = "multicluster.kubernetes.io/source-cluster"
)

// convertImport converts a ServiceImport to a record. ok is false if its name can't be a
// DNS name. The result shares no memory with o.
func convertImport(o *serviceImport, f *faults) (key string, s service, ok bool) {
	if key, ok = serviceKey(o.Name, o.Namespace); !ok {
		f.add("%q in namespace %q not valid as two DNS labels", o.Name, o.Namespace)
		return "", s, false
	}
	if o.Spec.Type == "Headless" {
		s.kind = headless
		return key, s, true
	}
	s.kind = clusterIP
	var list []byte
	ports := atMost(o.Spec.Ports, maxPorts, "ports", f)
	for i := range ports {
		p := &ports[i]
		list = appendPort(list, p.Name, p.Protocol, &p.Port, f)
	}
	s.ports = portList(list)
	s.addClusterIPs(o.Spec.IPs, f)
	return key, s, true
}

// convertImportSlice is [convertSlice] for an EndpointSlice of a ServiceImport. If its
// cluster can't be a label, its endpoints' names have no cluster.
func convertImportSlice(es *discoveryv1.EndpointSlice, pack converter, f *faults) *slice {
	own := *es // as if it belonged to a Service
	own.Labels = map[string]string{discoveryv1.LabelServiceName: es.Labels[labelImport]}
	s := convertSlice(&own, pack, f)
	id := es.Labels[labelCluster]
	if s == nil || id == "" {
		return s
	}
	if cluster, ok := namespaceKey(id); ok {
		s.cluster = cluster
	} else {
		f.add("cluster %q is not a DNS label", id)
	}
	return s
}

var underscore = []byte("_")
