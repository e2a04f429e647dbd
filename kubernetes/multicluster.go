package kubernetes

import (
	"bytes"

	discoveryv1 "k8s.io/api/discovery/v1"
)

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
	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		s.ports = appendPort(s.ports, p.Name, p.Protocol, &p.Port, f)
	}
	for _, ip := range o.Spec.IPs {
		s.addClusterIP(ip, f)
	}
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

// putImport adds o or replaces the import of that name.
func (v *View) putImport(o *serviceImport, f *faults) {
	key, rec, ok := convertImport(o, f)
	if ok {
		v.changeImports(func(x *index) bool { return x.putService(key, rec) })
	}
}

// dropImport removes the import of that name.
func (v *View) dropImport(ns, name string) {
	key, ok := serviceKey(name, ns)
	if ok {
		v.changeImports(func(x *index) bool { return x.dropService(key) })
	}
}

// putImportSlice adds es or replaces the slice of that name. A slice that belongs to no
// import is removed.
func (v *View) putImportSlice(es *discoveryv1.EndpointSlice, f *faults) {
	rec := convertImportSlice(es, v.sliceConverter(), f)
	if rec == nil {
		v.dropImportSlice(es.Namespace, es.Name)
		return
	}
	v.changeImports(func(x *index) bool { return x.putSlice(rec) })
}

// dropImportSlice removes the slice of that name.
func (v *View) dropImportSlice(ns, name string) {
	v.changeImports(func(x *index) bool { return x.dropSlice(objectKey(ns, name)) })
}

// matchBelowImport returns the node of the labels, if any, in front of an import.
func (m match) matchBelowImport(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchCluster(rel[:at[1]], b)
	case 5:
		return m.matchClusterEndpoint(rel[:at[1]], rel[at[1]:at[2]], b)
	}
	return m
}

// matchCluster returns the node of one label, in wire form, below an import: an endpoint
// without a cluster, the protocol above named ports, or the cluster above its endpoints.
func (m match) matchCluster(label []byte, b *Budget) match {
	if e := m.matchEndpoint(label[1:], b); e.node != notFound {
		return e
	}
	for _, s := range m.svc.slices {
		if !b.spend(sliceSteps) {
			return match{}
		}
		if s.cluster == string(label) && s.addrs != "" {
			return match{node: emptyNonTerminal}
		}
	}
	return match{}
}

// matchClusterEndpoint returns the node of two labels, in wire form, below an import.
// Unlike in the cluster zone, ports need an underscore: hostnames and clusters have none.
func (m match) matchClusterEndpoint(host, cluster []byte, b *Budget) match {
	if bytes.HasPrefix(host[1:], underscore) || bytes.HasPrefix(cluster[1:], underscore) {
		return m.matchPort(host[1:], cluster[1:], b)
	}
	m.node, m.host = endpointName, newHostnameMatch(host[1:])
	m.host.cluster = uint8(len(cluster)) // it follows host in the qname
	if !m.svc.hasEndpoint(&m.host, b) {
		return match{}
	}
	return m
}

var underscore = []byte("_")
