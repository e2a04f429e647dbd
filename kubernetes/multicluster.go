package kubernetes

import (
	"bytes"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// A multicluster zone has the names of the Multi-Cluster Services API (KEP-1645),
// made of ServiceImports and of the EndpointSlices that belong to them. They are in
// an index of their own, since an import and a Service of one name are two things:
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

// convertImport turns a ServiceImport into what DNS knows of it. ok is false if no DNS
// name can carry its name. The result shares no memory with o.
func convertImport(o *serviceImport, f *faults) (key string, s service, ok bool) {
	if key, ok = serviceKey(o.Name, o.Namespace); !ok {
		f.add("%q in namespace %q can't be two DNS labels", o.Name, o.Namespace)
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

// convertImportSlice is [convertSlice] for a slice of a ServiceImport. One whose cluster
// can't be a label has its endpoints' names without it.
func convertImportSlice(es *discoveryv1.EndpointSlice, pack converter, f *faults) *slice {
	own := *es // the slice as it would be, were it a Service's
	own.Labels = map[string]string{discoveryv1.LabelServiceName: es.Labels[labelImport]}
	s := convertSlice(&own, pack, f)
	id := es.Labels[labelCluster]
	if s == nil || id == "" {
		return s
	}
	if cluster, ok := namespaceKey(id); ok {
		s.cluster = cluster
	} else {
		f.add("its cluster %q can't be a DNS label", id)
	}
	return s
}

// putImport adds o or sets it in place of the import of its name.
func (v *View) putImport(o *serviceImport, f *faults) {
	key, rec, ok := convertImport(o, f)
	if ok {
		v.changeImports(func(x *index) bool { return x.putService(key, rec) })
	}
}

// dropImport forgets the import of that name.
func (v *View) dropImport(ns, name string) {
	key, ok := serviceKey(name, ns)
	if ok {
		v.changeImports(func(x *index) bool { return x.dropService(key) })
	}
}

// putImportSlice adds es or sets it in place of the slice of its name. One that is no
// import's is forgotten.
func (v *View) putImportSlice(es *discoveryv1.EndpointSlice, f *faults) {
	rec := convertImportSlice(es, v.sliceConverter(), f)
	if rec == nil {
		v.dropImportSlice(es.Namespace, es.Name)
		return
	}
	v.changeImports(func(x *index) bool { return x.putSlice(rec) })
}

// dropImportSlice forgets the slice of that name.
func (v *View) dropImportSlice(ns, name string) {
	v.changeImports(func(x *index) bool { return x.dropSlice(objectKey(ns, name)) })
}

// matchBelowImport is the node of the labels, if any, in front of an import.
func (m match) matchBelowImport(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchCluster(rel[:at[1]], b)
	case 5:
		return m.matchClusterEndpoint(rel[:at[1]], rel[at[1]:at[2]], b)
	}
	return m
}

// matchCluster is the node of one more label, in wire form, below an import: an endpoint
// of no cluster, the protocol above its named ports, or the cluster above its
// endpoints.
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

// matchClusterEndpoint is the node of two more labels, in wire form, below an import. Other than
// in the cluster zone it takes an underscore to name a port: a hostname and a
// cluster have none.
func (m match) matchClusterEndpoint(host, cluster []byte, b *Budget) match {
	if bytes.HasPrefix(host[1:], underscore) || bytes.HasPrefix(cluster[1:], underscore) {
		return m.matchPort(host[1:], cluster[1:], b)
	}
	m.node, m.host = endpointName, newHostnameMatch(host[1:])
	m.host.cluster = uint8(len(cluster)) // it stands behind host
	if !m.svc.hasEndpoint(&m.host, b) {
		return match{}
	}
	return m
}

var underscore = []byte("_")
