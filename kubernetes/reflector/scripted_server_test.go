// Internal: a fixture of internal tests.

package reflector

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/testlog"
)

// eventRecorder is an Handler that records its calls.
type eventRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *eventRecorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *eventRecorder) BeginList() { r.add("begin") }

func (r *eventRecorder) Upsert(obj runtime.Object, live bool) {
	r.add("put %s%s", describe(obj), map[bool]string{true: " live"}[live])
}

func (r *eventRecorder) Delete(obj runtime.Object) { r.add("drop %s", describe(obj)) }

func (r *eventRecorder) EndList(version uint64) { r.add("complete %d", version) }

func (r *eventRecorder) calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// describe is the name and the version of obj.
func describe(obj runtime.Object) string {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Sprintf("%T", obj)
	}
	return o.GetName() + "@" + o.GetResourceVersion()
}

// encoding is protobuf or JSON.
type encoding struct {
	name, contentType string
	object            func(runtime.Object) []byte
	event             func(kind watch.EventType, object []byte) []byte
}

// encodings are protobuf and JSON, as the API server writes them.
func encodings(t testing.TB) []encoding {
	t.Helper()
	scheme := runtime.NewScheme()
	codec := protobuf.NewSerializer(scheme, scheme)
	return []encoding{
		{
			"protobuf", "application/vnd.kubernetes.protobuf;stream=watch",
			func(obj runtime.Object) []byte {
				var b bytes.Buffer
				if err := codec.Encode(obj, &b); err != nil {
					t.Error(err)
				}
				return b.Bytes()
			},
			func(kind watch.EventType, object []byte) []byte {
				e := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}
				b, err := e.Marshal()
				if err != nil {
					t.Error(err)
				}
				return frame(b)
			},
		},
		{
			"JSON", "application/json",
			func(obj runtime.Object) []byte {
				b, err := json.Marshal(obj)
				if err != nil {
					t.Error(err)
				}
				return b
			},
			func(kind watch.EventType, object []byte) []byte {
				return fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", kind, object)
			},
		},
	}
}

func frame(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// encode is an event with a Service of that name and version.
func (w *encoding) encode(kind watch.EventType, name, version string) []byte {
	return w.event(kind, w.object(versioned(name, version)))
}

// endOfList is the bookmark that ends a streamed list.
func (w *encoding) endOfList(version string) []byte {
	s := versioned("", version)
	s.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return w.event(watch.Bookmark, w.object(s))
}

func versioned(name, version string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	s.TypeMeta = metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}
	return s
}

func expiredStatus() *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old",
	}
}

// reply is the response to one request: an error, or a body, after which it ends or stays
// open.
type reply struct {
	status int // 0 is 200
	reason metav1.StatusReason
	body   []byte
	open   bool
	silent bool // not even headers
}

// scriptedServer answers the n-th request with the n-th reply, and repeats the last one; with
// relist it answers lists with the first reply, and all others with the second one.
type scriptedServer struct {
	*httptest.Server
	wire    encoding
	replies []reply
	relist  bool

	mu   sync.Mutex
	seen []*http.Request
}

func (s *scriptedServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, req)
	r := s.reply(req)
	s.mu.Unlock()
	if r.silent {
		<-req.Context().Done()
		return
	}
	if r.status != 0 {
		s.writeStatus(w, r)
		return
	}
	w.Header().Set("Content-Type", s.wire.contentType)
	_, _ = w.Write(r.body)
	_ = http.NewResponseController(w).Flush()
	if r.open {
		<-req.Context().Done()
	}
}

// reply returns the reply to req, the last request so far. s is locked.
func (s *scriptedServer) reply(req *http.Request) reply {
	switch {
	case !s.relist:
		return s.replies[min(len(s.seen), len(s.replies))-1]
	case req.URL.Query().Has("sendInitialEvents"):
		return s.replies[0]
	}
	return s.replies[1]
}

// writeStatus answers with an error status in the server's encoding.
func (s *scriptedServer) writeStatus(w http.ResponseWriter, r reply) {
	contentType, _, _ := strings.Cut(s.wire.contentType, ";")
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(r.status)
	_, _ = w.Write(s.wire.object(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(r.status), Reason: r.reason, Message: "the test says so",
	}))
}

// queries returns the significant query parameters of the requests so far.
func (s *scriptedServer) queries() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.seen {
		q := req.URL.Query()
		kept := url.Values{}
		for _, k := range []string{"continue", "limit", "resourceVersion", "sendInitialEvents", "resourceVersionMatch", "watch"} {
			if q.Has(k) {
				kept.Set(k, q.Get(k))
			}
		}
		list = append(list, kept.Encode())
	}
	return list
}

func newScriptedServer(t *testing.T, w encoding, replies ...reply) *scriptedServer {
	t.Helper()
	s := &scriptedServer{wire: w, replies: replies}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// newReflector returns a reflector of the server's services that is not running.
func (s *scriptedServer) newReflector(t *testing.T) (*Reflector, *eventRecorder, *testlog.Buffer) {
	t.Helper()
	conn, err := Connect(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	client, err := conn.Client(corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	rec, log := new(eventRecorder), new(testlog.Buffer)
	return &Reflector{
		Client: client, Resource: services, Handler: rec, FirstBackoff: time.Millisecond,
		NewObject: func() runtime.Object { return &corev1.Service{} },
		Log:       slog.New(slog.NewTextHandler(log, nil)),
		Outages:   NewOutageLog(slog.New(slog.NewTextHandler(log, nil))),
	}, rec, log
}

// start runs f until the test ends.
func (f *Reflector) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// expect waits until there are as many calls as in want, and compares them. There may be
// more.
func (r *eventRecorder) expect(t *testing.T, want ...string) {
	t.Helper()
	poll.Until(t, want[len(want)-1], func() bool { return len(r.calls()) >= len(want) })
	if d := cmp.Diff(want, r.calls()[:len(want)]); d != "" {
		t.Errorf("the target is told, -want +got:\n%s", d)
	}
}

var services = schema.GroupResource{Resource: "services"}

const (
	streamed = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"
	resumed  = "resourceVersion=%d&watch=true"
)

// wantQueries compares the first requests.
func (s *scriptedServer) wantQueries(t *testing.T, want ...string) {
	t.Helper()
	poll.Until(t, "the last request", func() bool { return len(s.queries()) >= len(want) })
	if d := cmp.Diff(want, s.queries()[:len(want)]); d != "" {
		t.Errorf("requests, -want +got:\n%s", d)
	}
}

func inEncodings(t *testing.T, test func(t *testing.T, w encoding)) {
	t.Helper()
	for _, w := range encodings(t) {
		t.Run(w.name, func(t *testing.T) { test(t, w) })
	}
}

// localTransport serves the script without a network, for fake time. Bodies end with their
// requests.
type localTransport struct{ *scriptedServer }

func (l localTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	ctx := req.Context()
	done, cancel := context.WithCancel(ctx)
	cancel()
	l.ServeHTTP(w, req.WithContext(done))
	l.mu.Lock()
	r := l.reply(req)
	l.mu.Unlock()
	if r.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	resp := w.Result()
	if r.open {
		resp.Body = io.NopCloser(io.MultiReader(resp.Body, hangingBody{ctx}))
	}
	return resp, nil
}

// hangingBody is a body that delivers nothing until its context ends.
type hangingBody struct{ context.Context }

func (h hangingBody) Read([]byte) (int, error) {
	<-h.Done()
	return 0, h.Err()
}

// newLocalReflector returns a reflector of a scripted server without a network.
func newLocalReflector(t *testing.T, w encoding, replies ...reply) (*Reflector, *scriptedServer, *eventRecorder, *testlog.Buffer) {
	t.Helper()
	s := &scriptedServer{wire: w, replies: replies}
	conn, err := Connect(&rest.Config{Host: "http://localhost", WrapTransport: func(http.RoundTripper) http.RoundTripper { return localTransport{s} }})
	if err != nil {
		t.Fatal(err)
	}
	client, err := conn.Client(corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	rec, log := new(eventRecorder), new(testlog.Buffer)
	return &Reflector{
		Client: client, Resource: services, Handler: rec,
		NewObject: func() runtime.Object { return &corev1.Service{} },
		Log:       slog.New(slog.NewTextHandler(log, nil)),
		Outages:   NewOutageLog(slog.New(slog.NewTextHandler(log, nil))),
	}, s, rec, log
}

// roundTripFunc is a transport.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
