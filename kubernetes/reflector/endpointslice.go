package reflector

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// maxInternedBytes is the longest string that is interned. A label's value has 63 bytes
	// at most; longer strings, such as annotations, mostly differ from object to object.
	maxInternedBytes = 63
	// maxInterned bounds the interned strings: the nodes, zones and label values of a list of
	// slices.
	maxInterned = 1024
)

// sliceDecoder decodes objects with reusable buffers, all EndpointSlices into the same one.
// Slices are most of a cluster's changes, and the generated code allocates 900 values for a
// slice of 50 endpoints, of which a dozen are used. The zero value is ready. It is for one
// goroutine at a time.
type sliceDecoder struct {
	frame []byte // the event that is being read

	interned map[string]string

	slice  discoveryv1.EndpointSlice
	addrs  []string // backing arrays of the slice's fields, from here on
	texts  []string
	refs   []corev1.ObjectReference
	hints  []discoveryv1.EndpointHints
	zones  []discoveryv1.ForZone
	nodes  []discoveryv1.ForNode
	protos []corev1.Protocol
	ports  []int32
	bools  [2]bool
}

// decode decodes the protobuf message of an object into obj. Of an EndpointSlice it decodes
// what DNS needs into the decoder's own slice and returns that; it is valid until the next
// decode.
func (s *sliceDecoder) decode(message []byte, obj protobufObject) (runtime.Object, error) {
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		return &s.slice, s.readSlice(message)
	}
	return obj, obj.Unmarshal(message)
}

// intern returns b as a string, if possible one that was returned before.
func (s *sliceDecoder) intern(b []byte) string {
	if len(b) > maxInternedBytes {
		return string(b)
	}
	if w, ok := s.interned[string(b)]; ok {
		return w
	}
	if s.interned == nil || len(s.interned) >= maxInterned {
		s.interned = make(map[string]string)
	}
	w := string(b)
	s.interned[w] = w
	return w
}

// readSlice decodes an EndpointSlice.
func (s *sliceDecoder) readSlice(message []byte) error {
	s.bools = [2]bool{false, true}
	s.addrs, s.texts, s.refs, s.protos, s.ports = s.addrs[:0], s.texts[:0], s.refs[:0], s.protos[:0], s.ports[:0]
	s.hints, s.zones, s.nodes = s.hints[:0], s.zones[:0], s.nodes[:0]
	s.slice = discoveryv1.EndpointSlice{Endpoints: s.slice.Endpoints[:0], Ports: s.slice.Ports[:0]}
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			f.fail(s.readMeta(f.data, &s.slice.ObjectMeta))
		case 2:
			f.fail(s.readEndpoint(f.data))
		case 3:
			f.fail(s.readPort(f.data))
		case 4:
			s.slice.AddressType = discoveryv1.AddressType(s.intern(f.data))
		}
	}
	return f.err
}

func (s *sliceDecoder) readMeta(message []byte, m *metav1.ObjectMeta) error {
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			m.Name = string(f.data)
		case 3:
			m.Namespace = s.intern(f.data)
		case 6:
			m.ResourceVersion = string(f.data)
		case 11:
			f.fail(s.readEntry(f.data, &m.Labels))
		case 12:
			f.fail(s.readEntry(f.data, &m.Annotations))
		}
	}
	return f.err
}

// readEntry adds one entry to a map of strings.
func (s *sliceDecoder) readEntry(message []byte, to *map[string]string) error {
	var key, value string
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			key = s.intern(f.data)
		case 2:
			value = s.intern(f.data)
		}
	}
	if *to == nil {
		*to = make(map[string]string)
	}
	(*to)[key] = value
	return f.err
}

func (s *sliceDecoder) readEndpoint(message []byte) error {
	var ep discoveryv1.Endpoint
	addrs := len(s.addrs)
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			s.addrs = append(s.addrs, string(f.data))
		case 2:
			f.fail(s.readConditions(f.data, &ep.Conditions))
		case 3:
			ep.Hostname = s.stringPtr(string(f.data))
		case 4:
			f.fail(s.readRef(f.data))
			ep.TargetRef = &s.refs[len(s.refs)-1]
		case 6:
			ep.NodeName = s.stringPtr(s.intern(f.data))
		case 7:
			ep.Zone = s.stringPtr(s.intern(f.data))
		case 8:
			f.fail(s.readHints(f.data))
			ep.Hints = &s.hints[len(s.hints)-1]
		}
	}
	ep.Addresses = s.addrs[addrs:len(s.addrs):len(s.addrs)]
	s.slice.Endpoints = append(s.slice.Endpoints, ep)
	return f.err
}

// stringPtr returns a pointer to a copy of t.
func (s *sliceDecoder) stringPtr(t string) *string {
	s.texts = append(s.texts, t)
	return &s.texts[len(s.texts)-1]
}

func (s *sliceDecoder) readConditions(message []byte, c *discoveryv1.EndpointConditions) error {
	f := protobufFields{rest: message}
	for f.next() {
		b := &s.bools[min(f.value, 1)]
		switch f.number {
		case 1:
			c.Ready = b
		case 2:
			c.Serving = b
		case 3:
			c.Terminating = b
		}
	}
	return f.err
}

func (s *sliceDecoder) readRef(message []byte) error {
	var ref corev1.ObjectReference
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			ref.Kind = s.intern(f.data)
		case 2:
			ref.Namespace = s.intern(f.data)
		case 3:
			ref.Name = string(f.data)
		}
	}
	s.refs = append(s.refs, ref)
	return f.err
}

func (s *sliceDecoder) readHints(message []byte) error {
	zones, nodes := len(s.zones), len(s.nodes)
	f := protobufFields{rest: message}
	for f.next() {
		g := protobufFields{rest: f.data}
		name := ""
		for g.next() {
			if g.number == 1 {
				name = s.intern(g.data)
			}
		}
		f.fail(g.err)
		switch f.number {
		case 1:
			s.zones = append(s.zones, discoveryv1.ForZone{Name: name})
		case 2:
			s.nodes = append(s.nodes, discoveryv1.ForNode{Name: name})
		}
	}
	s.hints = append(s.hints, discoveryv1.EndpointHints{
		ForZones: s.zones[zones:len(s.zones):len(s.zones)], ForNodes: s.nodes[nodes:len(s.nodes):len(s.nodes)],
	})
	return f.err
}

func (s *sliceDecoder) readPort(message []byte) error {
	var p discoveryv1.EndpointPort
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1:
			p.Name = s.stringPtr(s.intern(f.data))
		case 2:
			s.protos = append(s.protos, corev1.Protocol(s.intern(f.data)))
			p.Protocol = &s.protos[len(s.protos)-1]
		case 3:
			s.ports = append(s.ports, int32(f.value))
			p.Port = &s.ports[len(s.ports)-1]
		}
	}
	s.slice.Ports = append(s.slice.Ports, p)
	return f.err
}
