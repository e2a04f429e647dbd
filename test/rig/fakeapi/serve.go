package fakeapi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"path"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// resource is a kind of object and its API version.
type resource struct{ name, group string }

// resources are what the server has, by plural.
var resources = map[string]resource{
	"services":       {name: "Service"},
	"endpointslices": {name: "EndpointSlice", group: "discovery.k8s.io"},
	"namespaces":     {name: "Namespace"},
	"pods":           {name: "Pod"},
}

func (r resource) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: "v1", Kind: r.name}
}

func (r resource) version() string { return r.kind().GroupVersion().String() }

// selection is what a request asks for.
type selection struct {
	plural, namespace, node string
	labels                  labels.Selector
	one                     bool // a list of one object, which shows that more may be listed
	protobuf                bool
	after                   int // events up to that version are left out
}

// selects reports whether the object is among what the request asks for.
func (q selection) selects(o Object) bool {
	return o == nil || q.covers(o) && q.labels.Matches(labels.Set(o.GetLabels())) // nil is a raw event
}

// covers is selects without the labels.
func (q selection) covers(o Object) bool {
	pod, ok := o.(*corev1.Pod)
	return (q.namespace == "" || q.namespace == o.GetNamespace()) && (q.node == "" || !ok || pod.Spec.NodeName == q.node)
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	q := parse(req)
	s.mu.Lock()
	s.record(req.URL)
	if s.fail != nil {
		if status, reason := s.fail(req); status != 0 {
			s.mu.Unlock()
			WriteStatus(w, status, reason)
			return
		}
	}
	accept := req.Header.Get("Accept")
	q.protobuf = s.protobuf && strings.Contains(accept, runtime.ContentTypeProtobuf) && !strings.Contains(accept, "as=Partial")
	if req.URL.Query().Get("watch") == "" {
		defer s.mu.Unlock()
		if strings.Contains(accept, "as=PartialObjectMetadata;") { // not …List
			WriteStatus(w, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable)
			return
		}
		s.writeList(w, q)
		return
	}
	s.watch(w, req, q)
}

func parse(req *http.Request) selection {
	q := selection{plural: path.Base(req.URL.Path)}
	if before, after, ok := strings.Cut(req.URL.Path, "/namespaces/"); ok && before != "" {
		q.namespace, _, _ = strings.Cut(after, "/")
	}
	q.one = req.URL.Query().Get("limit") == "1"
	var err error
	if q.labels, err = labels.Parse(req.URL.Query().Get("labelSelector")); err != nil {
		q.labels = labels.Nothing()
	}
	q.after, _ = strconv.Atoi(req.URL.Query().Get("resourceVersion"))
	for _, term := range strings.Split(req.URL.Query().Get("fieldSelector"), ",") {
		if node, ok := strings.CutPrefix(term, "spec.nodeName="); ok {
			q.node = node
		}
	}
	return q
}

// WriteStatus answers a request with an error status.
func WriteStatus(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure(status, reason))
}

func failure(status int, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(status), Reason: reason, Message: "the test says so",
	}
}

// writeList writes a list without pages, in protobuf if that is accepted and objects have that form. s is locked.
func (s *Server) writeList(w http.ResponseWriter, q selection) {
	items := []Object{}
	for _, o := range s.objects[q.plural] {
		if q.selects(o.Object) && (!q.one || len(items) == 0) {
			items = append(items, o.Object)
		}
	}
	version := strconv.Itoa(s.version)
	if q.protobuf {
		if list := packList(q.plural, version, items); list != nil {
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			_, _ = w.Write(list)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": resources[q.plural].version(), "kind": resources[q.plural].name + "List",
		"metadata": map[string]any{"resourceVersion": version}, "items": items,
	})
}

// packList returns a list in protobuf, as an API server writes it
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding); nil if an object has no such form.
func packList(plural, version string, items []Object) []byte {
	meta, err := (&metav1.ListMeta{ResourceVersion: version}).Marshal()
	if err != nil {
		panic(err)
	}
	list := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), meta)
	for _, o := range items {
		m, ok := o.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return nil
		}
		item, err := m.Marshal()
		if err != nil {
			panic(err)
		}
		list = protowire.AppendBytes(protowire.AppendTag(list, 2, protowire.BytesType), item)
	}
	r := resources[plural]
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: r.version(), Kind: r.name + "List"}, Raw: list}
	body, err := u.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte("k8s\x00"), body...)
}

// watch serves a watch until its end. s is locked; watch unlocks it.
func (s *Server) watch(w http.ResponseWriter, req *http.Request, q selection) {
	var out bytes.Buffer
	ended := !s.begin(&out, req, q)
	epoch, sent := s.epoch, s.sent
	w.Header().Set("Content-Type", q.contentType())
	flush := http.NewResponseController(w)
	for {
		changed := s.changed
		s.mu.Unlock()
		if _, err := w.Write(out.Bytes()); err != nil || flush.Flush() != nil || ended {
			return
		}
		out.Reset()
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		case <-s.closed:
			return
		}
		s.mu.Lock()
		if ended = s.epoch != epoch; !ended {
			ended = !s.writeNew(&out, q, s.sent-sent)
			sent = s.sent
		}
	}
}

// begin appends what a watch sends first: all objects, or the events after a version. It
// returns false after an error that ends the watch. s is locked.
func (s *Server) begin(out *bytes.Buffer, req *http.Request, q selection) bool {
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range s.objects[q.plural] {
			if q.selects(o.Object) {
				out.Write(o.added(q))
			}
		}
		out.Write(q.encode("BOOKMARK", bookmark(q.plural, s.version)))
		return true
	}
	if q.after == 0 {
		return true // from now on
	}
	return s.writeHistory(out, q)
}

// added returns the event that the object is in a streamed list. The server is locked.
func (e *entry) added(q selection) []byte {
	if e.listed[q.protobuf] == nil {
		e.listed[q.protobuf] = q.encode("ADDED", e.Object)
	}
	return e.listed[q.protobuf]
}

// writeHistory is begin for the events after a version.
func (s *Server) writeHistory(out *bytes.Buffer, q selection) bool {
	if q.after < s.oldest {
		q.writeExpired(out)
		return false
	}
	for _, e := range s.events {
		if e.raw == nil {
			q.write(out, e)
		}
	}
	return true
}

// writeNew is writeHistory for the last n events, including raw ones.
func (s *Server) writeNew(out *bytes.Buffer, q selection, n int) bool {
	if n > len(s.events) {
		q.writeExpired(out)
		return false
	}
	for _, e := range s.events[len(s.events)-n:] {
		q.write(out, e)
	}
	return true
}

func (q selection) writeExpired(out *bytes.Buffer) {
	status := failure(http.StatusGone, metav1.StatusReasonExpired)
	out.Write(q.encode("ERROR", &status))
}

// write appends the event, if the watch selects it, to out.
func (q selection) write(out *bytes.Buffer, e event) {
	kind, selected := q.see(e)
	switch {
	case !selected || e.plural != q.plural || e.version < q.after || e.version == q.after && e.raw == nil:
	case e.raw != nil:
		out.Write(e.raw)
	default:
		out.Write(q.encode(kind, e.object))
	}
}

// see returns the kind of the event for the watch, and whether it selects it: an object that loses a label is deleted for a
// watch that selects the label.
func (q selection) see(e event) (kind string, selected bool) {
	switch {
	case q.selects(e.object):
		return e.kind, true
	case e.kind == "MODIFIED" && q.covers(e.object):
		return "DELETED", true
	}
	return "", false
}

// bookmark ends the initial events of a streamed list.
func bookmark(plural string, version int) runtime.Object {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(resources[plural].kind())
	o.SetResourceVersion(strconv.Itoa(version))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return o
}

func (q selection) contentType() string {
	if q.protobuf {
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return "application/json"
}

// encode returns an event of a watch.
func (q selection) encode(kind string, o runtime.Object) []byte {
	if !q.protobuf {
		b, err := json.Marshal(map[string]any{"type": kind, "object": o})
		if err != nil {
			panic(err)
		}
		return append(b, '\n')
	}
	var raw bytes.Buffer
	scheme := runtime.NewScheme()
	if err := protobuf.NewSerializer(scheme, scheme).Encode(o, &raw); err != nil {
		panic(err)
	}
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw.Bytes()}}
	b, err := e.Marshal()
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}
