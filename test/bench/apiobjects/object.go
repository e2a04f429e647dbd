package apiobjects

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Object is a Namespace, Service, EndpointSlice or Pod.
type Object interface {
	metav1.Object
	runtime.Object
}

// EachObject calls f with each object that Write would write, except Nodes. f owns the object.
func (s Shape) EachObject(f func(Object)) {
	for i := range s.Namespaces {
		f(namespaceObject(i))
	}
	for _, svc := range s.Services() {
		f(svc.object())
		f(svc.slice())
	}
	for node := range s.Nodes {
		for i := range s.PodsPerNode {
			f(s.pod(node, i))
		}
	}
}

// nodes is how many nodes the endpoints are spread over.
const nodes = 500

// sliceAnnotations is an annotation of a real controller's slices: when what they tell of
// changed last.
var sliceAnnotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}

// yes and no are conditions of endpoints.
var yes, no = true, false

// labels are those that a chart gives to all it installs. They come to some 300
// bytes.
func labels(name, ns string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":       name,
		"app.kubernetes.io/instance":   name + "-" + ns,
		"app.kubernetes.io/version":    "2.14.7",
		"app.kubernetes.io/component":  "server",
		"app.kubernetes.io/part-of":    "shop",
		"app.kubernetes.io/managed-by": "Helm",
		"helm.sh/chart":                "server-2.14.7",
	}
}

// objectUID is an object's identity, as long as a real one.
func objectUID(kind, n int) types.UID {
	return types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", kind, n))
}

// Address is the pod address with the number n: all are in the upper half of
// 10.0.0.0/8, which the cluster IPs are not in. After eight millions they repeat.
func Address(n int) string {
	n = n%(1<<23) | 1<<23
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

// clusterIP is the address of the Service with the number n. The first 256 are left
// to the API server.
func clusterIP(n int) string {
	n += 256
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}).String()
}

// hostname is that of a StatefulSet's pod.
func hostname(s Service, i int) string { return fmt.Sprintf("%s-%d", s.Name, i) }

// namespaceObject makes a namespace as a platform's team would.
func namespaceObject(i int) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace(i),
		Labels: map[string]string{
			"team": namespace(i), "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "latest",
		},
		Annotations: map[string]string{"owner": "team " + namespace(i), "cost-centre": fmt.Sprint(7000 + i)},
	}}
}

// object makes the Service: two named ports, a chart's labels and annotations, and
// on every fourth the copy of itself that `kubectl apply` leaves.
func (s Service) object() *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, Labels: labels(s.Name, s.Namespace),
			Annotations: map[string]string{
				"meta.helm.sh/release-name": s.Name, "meta.helm.sh/release-namespace": s.Namespace,
			},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app.kubernetes.io/name": s.Name, "app.kubernetes.io/instance": s.Name + "-" + s.Namespace},
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")},
				{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090, TargetPort: intstr.FromString("metrics")},
			},
		},
	}
	svc.Spec.ClusterIP = clusterIP(s.Number)
	if s.Headless {
		svc.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if s.Number%4 == 0 {
		svc.Annotations[corev1.LastAppliedConfigAnnotation] = lastApplied(svc)
	}
	return svc
}

// lastApplied is what `kubectl apply` writes beside an object: what was applied.
func lastApplied(svc *corev1.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"apiVersion":"v1","kind":"Service","metadata":{"annotations":{},"labels":{`)
	for _, key := range []string{"name", "instance", "version", "component", "part-of", "managed-by"} {
		fmt.Fprintf(&b, `"app.kubernetes.io/%s":%q,`, key, svc.Labels["app.kubernetes.io/"+key])
	}
	fmt.Fprintf(&b, `"helm.sh/chart":"server-2.14.7"},"name":%q,"namespace":%q},"spec":{"ports":[`, svc.Name, svc.Namespace)
	fmt.Fprintf(&b, `{"name":"http","port":80,"protocol":"TCP","targetPort":"http"},{"name":"metrics","port":9090,"protocol":"TCP","targetPort":"metrics"}],`)
	fmt.Fprintf(&b, `"selector":{"app.kubernetes.io/instance":%q,"app.kubernetes.io/name":%q}}}`, svc.Labels["app.kubernetes.io/instance"], svc.Name)
	return b.String()
}

// slice makes the Service's EndpointSlice as the controller does: with the
// Service's labels and its own, the Service as its owner, and on each endpoint the
// pod, its node and its zone.
func (s Service) slice() *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-x7f2k", GenerateName: s.Name + "-",
			Labels: labels(s.Name, s.Namespace), Annotations: sliceAnnotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: s.Name, UID: objectUID(1, s.Number), Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{slicePort("http", 8080), slicePort("metrics", 9090)},
	}
	slice.Labels[discoveryv1.LabelServiceName] = s.Name
	slice.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	if s.Headless {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for i := range s.Endpoints {
		slice.Endpoints = append(slice.Endpoints, s.endpoint(i))
	}
	return slice
}

func slicePort(name string, port int32) discoveryv1.EndpointPort {
	protocol := corev1.ProtocolTCP
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
}

// endpoint makes the endpoint with the number i.
func (s Service) endpoint(i int) discoveryv1.Endpoint {
	n := s.First + i
	node, zone := Node(n%nodes), Zone(n%nodes)
	e := discoveryv1.Endpoint{
		Addresses:  []string{Address(n)},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		NodeName:   &node, Zone: &zone,
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: s.Name + "-5d9c7b8f6d-" + fmt.Sprintf("%05x", n), UID: objectUID(2, n)},
	}
	if s.Headless {
		name := hostname(s, i)
		e.Hostname, e.TargetRef.Name = &name, name
	}
	return e
}

// nodeObject makes a node with its zone.
func nodeObject(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node(i), Labels: map[string]string{
		corev1.LabelHostname: Node(i), corev1.LabelTopologyZone: Zone(i), corev1.LabelTopologyRegion: "eu-1",
	}}}
}

// pod makes the pod with the number i of a node, in one of the namespaces that it
// uses. Its address is one that no endpoint has.
func (s Shape) pod(node, i int) *corev1.Pod {
	uses := s.Uses(node)
	n := node*s.PodsPerNode + i
	quantity := resource.MustParse("100m")
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: uses[i%len(uses)], Name: fmt.Sprintf("client-%s-%03d", Node(node), i), Labels: labels("client", uses[i%len(uses)]),
		},
		Spec: corev1.PodSpec{
			NodeName: Node(node),
			Containers: []corev1.Container{{
				Name: "client", Image: "registry.example/shop/client:2.14.7",
				Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				Env:       []corev1.EnvVar{{Name: "BACKEND", Value: "http://web-00001"}, {Name: "LOG_LEVEL", Value: "info"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity}},
			}},
		},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			HostIP: Address(6<<20 + node), PodIP: Address(7<<20 + n), PodIPs: []corev1.PodIP{{IP: Address(7<<20 + n)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}
