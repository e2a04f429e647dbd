package kubernetes

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// multiclusterV1alpha1 is the API group of ServiceImports, in the version that all
// implementations serve.
var multiclusterV1alpha1 = schema.GroupVersion{Group: "multicluster.x-k8s.io", Version: "v1alpha1"}

// serviceImport is the part of a ServiceImport that DNS uses (Multi-Cluster Services API,
// KEP-1645). It is a custom resource and always encoded as JSON.
type serviceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              serviceImportSpec `json:"spec"`
}

type serviceImportSpec struct {
	Type  string              `json:"type"` // "ClusterSetIP" or "Headless"
	IPs   []string            `json:"ips"`
	Ports []serviceImportPort `json:"ports"`
}

type serviceImportPort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"` // "" is TCP
	Port     int32  `json:"port"`
}

// DeepCopyObject implements runtime.Object.
func (s *serviceImport) DeepCopyObject() runtime.Object {
	c := &serviceImport{TypeMeta: s.TypeMeta, Spec: s.Spec}
	s.DeepCopyInto(&c.ObjectMeta)
	c.Spec.IPs, c.Spec.Ports = slices.Clone(s.Spec.IPs), slices.Clone(s.Spec.Ports)
	return c
}
