// Package fakeapi is the scripted Kubernetes API server that stands in for a real one.
//
// A [Server] holds objects and serves lists, streamed lists and watches of them. A test adds,
// replaces and removes objects, ends all watches, answers requests itself, or makes the server
// forget its history so that resourceVersions expire. Package apiserver runs the real server,
// which takes a build and some seconds.
//
// Watches follow the namespace of the request's path and, of field selectors, spec.nodeName.
// Label selectors have no effect. Everything is JSON; with [Server.UseProtobuf] watches of
// whole objects are protobuf, as a real server's.
package fakeapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an object of the API: *corev1.Service, *corev1.Pod, *corev1.Namespace or
// *discoveryv1.EndpointSlice.
type Object interface {
	metav1.Object
	runtime.Object
}

// maxEvents bounds the history. A watch from an older version expires.
const maxEvents = 4096

// Server is a scripted API server. Its methods are safe for concurrent use. [New] makes one.
type Server struct {
	// URL is where a server of [Start] listens.
	URL string

	mu      sync.Mutex
	version int
	objects map[string]map[string]*entry // by plural and namespace/name
	events  []event                      // in the order of their versions
	sent    int                          // the number of events so far, forgotten ones included
	oldest  int                          // watches from versions before it expire
	// changed is closed when a watch has something to send or must end, and replaced.
	changed  chan struct{}
	epoch    int // of Disconnect: a watch ends when it changes
	protobuf bool
	fail     func(*http.Request) (status int, reason metav1.StatusReason)
	requests map[string]int // by URL
	closed   chan struct{}
}

// entry is an object that the server has.
type entry struct {
	Object
	// listed are the events that it is in streamed lists, by whether they are protobuf. They are
	// made when they are first sent, because encoding a large cluster takes seconds.
	listed map[bool][]byte
}

// event is one change. raw, if set, replaces the encoded object.
type event struct {
	version int
	plural  string
	kind    string
	object  Object
	raw     []byte
}

// New returns a server without objects. Serve it with [Server.ServeHTTP], and call Close.
func New() *Server {
	return &Server{
		version: 1, objects: map[string]map[string]*entry{}, changed: make(chan struct{}), requests: map[string]int{},
		closed: make(chan struct{}),
	}
}

// Start returns a server on loopback, without TLS, that closes when the test ends.
func Start(tb testing.TB) *Server {
	s := New()
	web := httptest.NewServer(s)
	s.URL = web.URL
	tb.Cleanup(func() {
		s.Close()
		web.Close()
	})
	return s
}

// Close ends all watches, now and later.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
}

// Put adds or replaces o. It sets o's kind and resourceVersion and keeps a copy.
func (s *Server) Put(o Object) {
	plural := setType(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	kept := o.DeepCopyObject().(Object)
	key, kind := o.GetNamespace()+"/"+o.GetName(), "MODIFIED"
	if s.objects[plural] == nil {
		s.objects[plural] = map[string]*entry{}
	}
	if s.objects[plural][key] == nil {
		kind = "ADDED"
	}
	s.objects[plural][key] = &entry{Object: kept, listed: map[bool][]byte{}}
	s.add(event{version: s.version, plural: plural, kind: kind, object: kept})
}

// Remove deletes the object with o's name; o is its last state.
func (s *Server) Remove(o Object) {
	plural := setType(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	delete(s.objects[plural], o.GetNamespace()+"/"+o.GetName())
	s.add(event{version: s.version, plural: plural, kind: "DELETED", object: o.DeepCopyObject().(Object)})
}

// SendRaw sends b as it is to the present watches of the resource.
func (s *Server) SendRaw(plural string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(event{version: s.version, plural: plural, raw: b})
}

// add appends an event. s is locked.
func (s *Server) add(e event) {
	s.events = append(s.events, e)
	s.sent++
	if n := len(s.events) - maxEvents; n > 0 {
		s.oldest = s.events[n-1].version
		clear(s.events[:n])
		s.events = s.events[n:] // append copies them now and then
	}
	s.wake()
}

// wake makes all watches look. s is locked.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Disconnect ends every watch. New ones are served.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.wake()
}

// Forget makes every resourceVersion so far too old for a watch.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.events = s.version, nil
	s.epoch++ // present watches have to list again, too
	s.wake()
}

// SetFail sets a function that answers requests with an error status, unless it returns 0.
// nil answers none. It is called with the server locked.
func (s *Server) SetFail(fail func(*http.Request) (status int, reason metav1.StatusReason)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// UseProtobuf makes watches of whole objects protobuf for clients that accept it.
func (s *Server) UseProtobuf() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protobuf = true
}

// Lists counts the lists of a resource so far, by its plural: streamed ones, and first pages, but not requests for a single
// object.
func (s *Server) Lists(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, count := range s.requests {
		u, err := url.Parse(text)
		if err != nil || path.Base(u.Path) != resource {
			continue
		}
		q := u.Query()
		single := q.Get("limit") == "1" || strings.Contains(q.Get("fieldSelector"), "metadata.name=")
		if q.Has("sendInitialEvents") || !q.Has("watch") && !q.Has("continue") && !single {
			n += count
		}
	}
	return n
}

// Requests counts the requests so far whose URL has all of the parts.
func (s *Server) Requests(parts ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
next:
	for u, count := range s.requests {
		for _, p := range parts {
			if !strings.Contains(u, p) {
				continue next
			}
		}
		n += count
	}
	return n
}

// record counts a request. Of watches, the random timeout and the version are left out, so
// that the number of different URLs is bounded. s is locked.
func (s *Server) record(u *url.URL) {
	query := u.Query()
	query.Del("timeoutSeconds")
	if query.Get("resourceVersion") != "" {
		query.Set("resourceVersion", "some")
	}
	s.requests[u.Path+"?"+query.Encode()]++
}

// setType sets o's kind and returns its plural.
func setType(o Object) string {
	for plural, r := range resources {
		if r.is(o) {
			o.GetObjectKind().SetGroupVersionKind(r.kind())
			return plural
		}
	}
	panic("fakeapi: no resource for this type of object")
}

// is reports whether o is an object of the resource.
func (r resource) is(o Object) bool {
	switch o.(type) {
	case *corev1.Service:
		return r.name == "Service"
	case *corev1.Pod:
		return r.name == "Pod"
	case *corev1.Namespace:
		return r.name == "Namespace"
	case *discoveryv1.EndpointSlice:
		return r.name == "EndpointSlice"
	}
	return false
}
