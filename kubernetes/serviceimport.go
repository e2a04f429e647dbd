package kubernetes

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
