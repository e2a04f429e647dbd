// Internal: tests decoders.

package reflector

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodens-dns/nodens/test/soak"
)

// managed adds the metadata that an API server adds.
func managed(o *metav1.ObjectMeta, fields string) {
	o.UID, o.ResourceVersion = types.UID("4b5a2f4e-7c1e-4f0e-9a53-0b6f1c0a3d11"), "123456"
	o.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0))
	o.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
		Time: &o.CreationTimestamp, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}}
}

// realService is a Service as an API server sends it.
func realService() *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}}
	s.Name, s.Namespace = "checkout-backend", "shop-17"
	s.Labels = map[string]string{"app.kubernetes.io/name": "checkout", "app.kubernetes.io/managed-by": "Helm"}
	s.Annotations = map[string]string{"meta.helm.sh/release-name": "checkout", "meta.helm.sh/release-namespace": "shop-17"}
	managed(&s.ObjectMeta, `{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{},"f:meta.helm.sh/release-namespace":{}},`+
		`"f:labels":{".":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:internalTrafficPolicy":{},`+
		`"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},`+
		`"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`)
	policy, single := corev1.ServiceInternalTrafficPolicyCluster, corev1.IPFamilyPolicySingleStack
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.12.34", ClusterIPs: []string{"10.96.12.34"},
		Selector: map[string]string{"app.kubernetes.io/name": "checkout"}, SessionAffinity: corev1.ServiceAffinityNone,
		Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single, InternalTrafficPolicy: &policy,
	}
	return s
}

// realSlice is an EndpointSlice of n endpoints as an API server sends it.
func realSlice(n int) *discoveryv1.EndpointSlice {
	yes, no, name, port, proto := true, false, "http", int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}}
	s.Name, s.Namespace, s.AddressType = "checkout-backend-x7k2p", "shop-17", discoveryv1.AddressTypeIPv4
	s.Labels = map[string]string{
		discoveryv1.LabelServiceName: "checkout-backend", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		corev1.IsHeadlessService: "",
	}
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "checkout-backend", Controller: &yes, UID: "4b5a2f4e"}}
	managed(&s.ObjectMeta, `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},`+
		`"f:generateName":{},"f:labels":{".":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},`+
		`"f:ownerReferences":{".":{},"k:{\"uid\":\"4b5a2f4e\"}":{}}},"f:ports":{}}`)
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}}
	for i := range n {
		node, zone := fmt.Sprintf("node-%03d", i), fmt.Sprintf("zone-%c", 'a'+i%3)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("checkout-backend-7d4b9c6f5d-%05d", i),
				UID: types.UID(fmt.Sprintf("4b5a2f4e-7c1e-4f0e-9a53-%012d", i)),
			},
			NodeName: &node, Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return s
}

// repeat is an endless reader of the same bytes.
type repeat struct{ whole, rest []byte }

func (r *repeat) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		r.rest = r.whole
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// BenchmarkStream reads events of a watch.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		name    string
		object  runtime.Object
		example func() runtime.Object
	}{
		{"Service", realService(), func() runtime.Object { return &corev1.Service{} }},
		{"EndpointSlice50", realSlice(50), func() runtime.Object { return &discoveryv1.EndpointSlice{} }},
	} {
		for _, w := range encodings(b) {
			b.Run(c.name+"/"+w.name, func(b *testing.B) {
				event := w.event(watch.Modified, w.object(c.object))
				s, err := openWatchStream(&repeat{whole: event}, &decoder{newObject: c.example})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetBytes(int64(len(event)))
				for b.Loop() {
					if _, _, err := s.next(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// needed returns es without what a sliceDecoder skips.
func needed(es *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	n := &discoveryv1.EndpointSlice{AddressType: es.AddressType}
	n.Name, n.Namespace, n.ResourceVersion = es.Name, es.Namespace, es.ResourceVersion
	n.Labels, n.Annotations = es.Labels, es.Annotations
	for _, p := range es.Ports {
		p.AppProtocol = nil
		n.Ports = append(n.Ports, p)
	}
	for _, e := range es.Endpoints {
		e.DeprecatedTopology = nil
		if e.TargetRef != nil {
			e.TargetRef = &corev1.ObjectReference{Kind: e.TargetRef.Kind, Namespace: e.TargetRef.Namespace, Name: e.TargetRef.Name}
		}
		n.Endpoints = append(n.Endpoints, e)
	}
	return n
}

// sliceOf returns a random EndpointSlice with missing parts.
func sliceOf(r *rand.Rand) *discoveryv1.EndpointSlice {
	es := realSlice(r.IntN(8))
	maybe := func() bool { return r.IntN(3) == 0 }
	if maybe() {
		es.Labels, es.Annotations = nil, nil
	}
	if maybe() {
		es.Ports[0] = discoveryv1.EndpointPort{}
	}
	if maybe() {
		es.Ports = append(es.Ports, es.Ports...)
	}
	es.AddressType = []discoveryv1.AddressType{"", discoveryv1.AddressTypeIPv6, "strange"}[r.IntN(3)]
	host, no := strings.Repeat("h", r.IntN(100)), false
	for i := range es.Endpoints {
		e := &es.Endpoints[i]
		for n := range r.IntN(3) {
			e.Addresses = append(e.Addresses, fmt.Sprint("::", n))
		}
		if maybe() {
			e.Hostname = &host
		}
		if maybe() {
			e.TargetRef = nil
		}
		if maybe() {
			e.Zone, e.NodeName, e.Hints = nil, nil, nil
		}
		if maybe() {
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "n1"}, {Name: "n2"}}}
		}
		if maybe() {
			e.Conditions = discoveryv1.EndpointConditions{Ready: &no}
		}
		if maybe() {
			e.DeprecatedTopology = map[string]string{"a": "b"}
		}
	}
	return es
}

// sameParts compares as the API does: empty equals nil.
var sameParts = cmpopts.EquateEmpty()

// A sliceDecoder, used again and again, decodes the same as the generated code.
func TestSliceDecoderMatchesGenerated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s sliceDecoder
	for range soak.Choose(250, 2000) {
		want := sliceOf(r)
		message, err := want.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.decode(message, &discoveryv1.EndpointSlice{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(needed(want), got, sameParts); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
	}
	if len(s.interned) > maxInterned {
		t.Errorf("%d words are kept, the most is %d", len(s.interned), maxInterned)
	}
}

// A sliceDecoder keeps no string forever, and nothing of a large slice for the next one.
func TestSliceDecoderForgets(t *testing.T) {
	var s sliceDecoder
	for i := range 5 * maxInterned {
		if w := s.intern(fmt.Appendf(nil, "node-%d", i)); w != fmt.Sprintf("node-%d", i) {
			t.Fatalf("word %d is %q", i, w)
		}
	}
	if n := len(s.interned); n > maxInterned {
		t.Errorf("%d words are kept, the most is %d", n, maxInterned)
	}
	for _, want := range []*discoveryv1.EndpointSlice{realSlice(50), realSlice(50), {}} {
		message, err := want.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.decode(message, want.DeepCopy()); err != nil || !cmp.Equal(needed(want), got, sameParts) {
			t.Errorf("error %v, %s", err, cmp.Diff(needed(want), got, sameParts))
		}
		n := len(want.Endpoints)
		for part, have := range map[string]int{
			"addresses": len(s.addrs), "targets": len(s.refs), "hints": len(s.hints), "zones": len(s.zones),
			"texts": (len(s.texts) - len(want.Ports)) / 2, "ports": len(s.ports) * n, "protocols": len(s.protos) * n,
		} {
			if have != n {
				t.Errorf("after a slice of %d endpoints there are %d %s", n, have, part)
			}
		}
	}
}

// FuzzStream reads any bytes as a stream: reading ends, keeps no more than the data
// received, and decodes a message like the generated code.
func FuzzStream(f *testing.F) {
	for _, w := range encodings(f) {
		f.Add(w.event(watch.Added, w.object(realSlice(2))))
		f.Add(w.event(watch.Bookmark, w.object(&discoveryv1.EndpointSlice{})))
	}
	message, err := realSlice(2).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message)
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := openWatchStream(bytes.NewReader(data), &decoder{newObject: func() runtime.Object { return &discoveryv1.EndpointSlice{} }})
		var lost decodeError
		for n := 0; err == nil || errors.As(err, &lost); n++ {
			if n > len(data) {
				t.Fatal("more events than bytes")
			}
			_, _, err = s.next()
		}
		var mine sliceDecoder
		_, _ = mine.decode(data, &discoveryv1.EndpointSlice{})
		var want discoveryv1.EndpointSlice
		if err := want.Unmarshal(data); err != nil {
			return
		}
		message, err := want.Marshal() // as a server writes it
		if err != nil {
			t.Fatal(err)
		}
		got, err := mine.decode(message, &discoveryv1.EndpointSlice{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(needed(&want), got, sameParts); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
}
