package kubernetes

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// record is a target that writes down what it is told.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) begin() { r.add("begin") }

func (r *record) put(obj runtime.Object, live bool) {
	r.add("put %s%s", says(obj), map[bool]string{true: " live"}[live])
}

func (r *record) drop(obj runtime.Object) { r.add("drop %s", says(obj)) }

func (r *record) complete(version uint64) { r.add("complete %d", version) }

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// says is the name and the version of obj.
func says(obj runtime.Object) string {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Sprintf("%T", obj)
	}
	return o.GetName() + "@" + o.GetResourceVersion()
}

// dialect is one of the two forms that objects come in.
type dialect struct {
	name, contentType string
	object            func(runtime.Object) []byte
	event             func(kind watch.EventType, object []byte) []byte
}

// dialects are protobuf and JSON, as the API server writes them.
func dialects(t *testing.T) []dialect {
	t.Helper()
	scheme := runtime.NewScheme()
	codec := protobuf.NewSerializer(scheme, scheme)
	return []dialect{
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

// say is an event with a Service of that name and version.
func (w *dialect) say(kind watch.EventType, name, version string) []byte {
	return w.event(kind, w.object(versioned(name, version)))
}

// end is the bookmark that ends a streamed list.
func (w *dialect) end(version string) []byte {
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

// reply answers one request: with an error, or with bytes, after which it ends or
// stays open.
type reply struct {
	status int // 0 is 200
	reason metav1.StatusReason
	body   []byte
	open   bool
	silent bool // not even headers
}

// script is a server that answers the first request with the first reply and so
// on, and all that come after the last with the last.
type script struct {
	*httptest.Server
	wire    dialect
	replies []reply

	mu   sync.Mutex
	seen []*http.Request
}

func (s *script) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	r := s.replies[min(len(s.seen), len(s.replies)-1)]
	s.seen = append(s.seen, req)
	s.mu.Unlock()
	if r.silent {
		<-req.Context().Done()
		return
	}
	if r.status != 0 {
		writeStatus(w, r.status, r.reason)
		return
	}
	w.Header().Set("Content-Type", s.wire.contentType)
	_, _ = w.Write(r.body)
	_ = http.NewResponseController(w).Flush()
	if r.open {
		<-req.Context().Done()
	}
}

// queries are the parts of the requests so far that make a difference.
func (s *script) queries() (list []string) {
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

func newScript(t *testing.T, w dialect, replies ...reply) *script {
	t.Helper()
	s := &script{wire: w, replies: replies}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// follower makes one of the server's services, without running it.
func (s *script) follower(t *testing.T) (*follower, *record, *buffer) {
	t.Helper()
	api, err := openClients(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.close)
	rec, log := new(record), new(buffer)
	return &follower{
		client: api.core, resource: services, target: rec, retry: time.Millisecond,
		example: func() runtime.Object { return &corev1.Service{} },
		log:     slog.New(slog.NewTextHandler(log, nil)),
	}, rec, log
}

// start runs f until the test ends.
func (f *follower) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// expect waits until the target was told as much as want, and compares. Followers
// that go on for ever may have told more.
func (r *record) expect(t *testing.T, want ...string) {
	t.Helper()
	await(t, want[len(want)-1], func() bool { return len(r.all()) >= len(want) })
	if d := cmp.Diff(want, r.all()[:len(want)]); d != "" {
		t.Errorf("the target is told, -want +got:\n%s", d)
	}
}

const (
	streamed = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"
	resumed  = "resourceVersion=%d&watch=true"
)

// asked compares the first requests.
func (s *script) asked(t *testing.T, want ...string) {
	t.Helper()
	await(t, "the last request", func() bool { return len(s.queries()) >= len(want) })
	if d := cmp.Diff(want, s.queries()[:len(want)]); d != "" {
		t.Errorf("requests, -want +got:\n%s", d)
	}
}

func inDialects(t *testing.T, test func(t *testing.T, w dialect)) {
	t.Helper()
	for _, w := range dialects(t) {
		t.Run(w.name, func(t *testing.T) { test(t, w) })
	}
}

// A list is streamed, and the watch goes on behind it and, when it breaks, from
// the last version that a bookmark or an object had.
func TestFollowStreams(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		s := newScript(t, w,
			reply{body: slices.Concat(w.say(watch.Added, "a", "3"), w.say(watch.Added, "b", "2"), w.end("7"),
				w.say(watch.Modified, "b", "8"), w.say(watch.Deleted, "a", "9"))},
			reply{body: w.say(watch.Bookmark, "", "12")},
			reply{body: w.say(watch.Added, "c", "13"), open: true})
		f, rec, log := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "put b@2", "complete 7", "put b@8 live", "drop a@9", "put c@13 live")
		s.asked(t, streamed, fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 12))
		if n := len(s.queries()); n != 3 {
			t.Errorf("%d requests, want 3", n)
		}
		if got := log.String(); strings.Contains(got, "left out") {
			t.Errorf("the log is\n%s", got)
		}
	})
}

// An object that goes while the list is streamed is dropped, and one that
// comes is the list's.
func TestFollowDeletesInList(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		s := newScript(t, w, reply{open: true, body: slices.Concat(
			w.say(watch.Added, "a", "3"), w.say(watch.Deleted, "a", "5"), w.say(watch.Modified, "b", "6"), w.end("7"))})
		f, rec, _ := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "drop a@5", "put b@6", "complete 7")
	})
}

// A list that breaks off is never complete: it is begun again.
func TestFollowListBreaks(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		second := w.say(watch.Added, "b", "4")
		s := newScript(t, w,
			reply{body: w.say(watch.Added, "a", "3")},
			reply{body: slices.Concat(w.say(watch.Added, "a", "3"), second[:len(second)/2])},
			reply{body: slices.Concat(w.say(watch.Added, "a", "3"), second, w.end("4")), open: true})
		f, rec, _ := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "begin", "put a@3", "begin", "put a@3", "put b@4", "complete 4")
		s.asked(t, streamed, streamed, streamed)
	})
}

// A server that can't stream is asked for pages; that is remembered. A page that
// comes too late means a new list.
func TestFollowPages(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		list := func(version, token string, names ...string) reply {
			l := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: token}}
			l.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
			for _, n := range names {
				l.Items = append(l.Items, *versioned(n, "2"))
			}
			return reply{body: w.object(l)}
		}
		s := newScript(t, w,
			reply{status: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid},
			list("7", "more", "a", "b"),
			reply{status: http.StatusGone, reason: metav1.StatusReasonExpired},
			list("8", "more", "a"),
			list("8", "", "c"),
			reply{body: w.event(watch.Error, w.object(expiredStatus()))},
			list("9", ""),
			reply{body: w.say(watch.Modified, "c", "10"), open: true})
		f, rec, _ := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "put a@2", "put b@2", "begin", "put a@2", "put c@2", "complete 8",
			"begin", "complete 9", "put c@10 live")
		s.asked(t, streamed, "limit=500", "continue=more&limit=500", "limit=500", "continue=more&limit=500",
			fmt.Sprintf(resumed, 8), "limit=500", fmt.Sprintf(resumed, 9))
	})
}

// A version that the server no longer knows means a new list, whether the request
// or the stream says so; other errors don't.
func TestFollowExpires(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		other := expiredStatus()
		other.Code, other.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		s := newScript(t, w,
			reply{body: w.end("7")},
			reply{status: http.StatusGone, reason: metav1.StatusReasonExpired},
			reply{body: w.end("8")},
			reply{body: w.event(watch.Error, w.object(expiredStatus()))},
			reply{body: w.end("9")},
			reply{body: w.event(watch.Error, w.object(other))},
			reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable},
			reply{body: w.say(watch.Added, "a", "10"), open: true})
		f, rec, log := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "complete 7", "begin", "complete 8", "begin", "complete 9", "put a@10 live")
		s.asked(t, streamed, fmt.Sprintf(resumed, 7), streamed, fmt.Sprintf(resumed, 8), streamed,
			fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 9))
		await(t, "the recovery", func() bool {
			return strings.HasSuffix(strings.TrimSpace(log.String()), `followed again" resource=services`)
		})
		if got := log.String(); !strings.Contains(got, "in the stream: ") || !strings.Contains(got, "verb=watch") {
			t.Errorf("the log is\n%s", got)
		}
	})
}

// An object that can't be read costs nothing but itself.
func TestFollowSkips(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
		pod.Name = "p"
		large := versioned("large", "6")
		large.Annotations = map[string]string{"x": strings.Repeat("x", maxFrame)}
		almost := versioned("almost", "5")
		almost.Annotations = map[string]string{"x": strings.Repeat("x", maxFrame-1000)}
		broken := w.say(watch.Added, "broken", "4")
		broken = bytes.Replace(broken, []byte(`"name":"broken"`), []byte(`"name":[1,2,3]`), 1)
		broken = bytes.Replace(broken, []byte("\n\006broken"), []byte("\n\177broken"), 1)
		s := newScript(t, w, reply{open: true, body: slices.Concat(
			w.say(watch.Added, "a", "2"), broken, w.event(watch.Added, w.object(pod)), w.event(watch.Added, w.object(expiredStatus())),
			w.event(watch.Added, w.object(almost)), w.event(watch.Added, w.object(large)), w.say("NONSENSE", "n", "6"), w.end("7"),
			w.say(watch.Added, "b", "8"))})
		f, rec, log := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "put a@2", "put almost@5", "complete 7", "put b@8 live")
		for _, want := range []string{`it is a \"Pod\" and not a Service`, "has a *v1.Status", "the most is", `unknown type \"NONSENSE\"`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log doesn't say %q:\n%s", want, log.String())
			}
		}
		if n := strings.Count(log.String(), "left out"); n != 5 {
			t.Errorf("%d objects left out, want 5:\n%s", n, log.String())
		}
	})
}

// What is no event at all ends the stream, and the watch goes on from where it was.
func TestFollowGarbage(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		garbage := []byte("\x00\x00\x00\x05\xff\xff\xff\xff\xff")
		if w.name == "JSON" {
			garbage = []byte("]]\n")
		}
		s := newScript(t, w,
			reply{body: []byte("<html>your session has ended</html>")},
			reply{body: slices.Concat(w.end("7"), garbage, w.say(watch.Added, "lost", "8"))},
			reply{body: w.say(watch.Added, "a", "8"), open: true})
		f, rec, log := s.follower(t)
		f.start(t)
		rec.expect(t, "begin", "begin", "complete 7", "put a@8 live")
		s.asked(t, streamed, streamed, fmt.Sprintf(resumed, 7))
		if n := strings.Count(log.String(), "can't be followed"); n != 2 {
			t.Errorf("%d troubles, want 2:\n%s", n, log.String())
		}
	})
}

// local is the script without a network, for time that is made up. Bodies end with
// their requests.
type local struct{ *script }

func (l local) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	ctx := req.Context()
	done, cancel := context.WithCancel(ctx)
	cancel()
	l.ServeHTTP(w, req.WithContext(done))
	l.mu.Lock()
	r := l.replies[min(len(l.seen), len(l.replies))-1]
	l.mu.Unlock()
	if r.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	resp := w.Result()
	if r.open {
		resp.Body = io.NopCloser(io.MultiReader(resp.Body, hanging{ctx}))
	}
	return resp, nil
}

// hanging is the rest of a body that never comes.
type hanging struct{ context.Context }

func (h hanging) Read([]byte) (int, error) {
	<-h.Done()
	return 0, h.Err()
}

// localFollower makes a follower of the script without a network.
func localFollower(t *testing.T, w dialect, replies ...reply) (*follower, *script, *record, *buffer) {
	t.Helper()
	s := &script{wire: w, replies: replies}
	codec, err := codecs()
	if err != nil {
		t.Fatal(err)
	}
	c := &rest.Config{Host: "http://localhost", APIPath: "/api"}
	c.GroupVersion, c.NegotiatedSerializer = &corev1.SchemeGroupVersion, codec.WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(c, &http.Client{Transport: local{s}})
	if err != nil {
		t.Fatal(err)
	}
	rec, log := new(record), new(buffer)
	return &follower{
		client: client, resource: services, target: rec,
		example: func() runtime.Object { return &corev1.Service{} },
		log:     slog.New(slog.NewTextHandler(log, nil)),
	}, s, rec, log
}

// A server that takes a request and says nothing, or says nothing any more, is
// given up. A list is asked for as a stream and in pages in turns then.
func TestFollowSilence(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		l := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		l.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
		synctest.Test(t, func(t *testing.T) {
			f, s, rec, log := localFollower(t, w,
				reply{silent: true},
				reply{silent: true},
				reply{body: w.say(watch.Added, "a", "3"), open: true},
				reply{body: w.object(l)},
				reply{open: true},
				reply{body: w.say(watch.Added, "b", "8"), open: true},
				reply{silent: true},
				reply{body: w.say(watch.Added, "c", "9"), open: true})
			f.start(t)
			time.Sleep(7*watchSilence + 7*2*backoffMost)
			synctest.Wait()
			rec.expect(t, "begin", "begin", "put a@3", "begin", "complete 7", "put b@8 live", "put c@9 live")
			s.asked(t, streamed, "limit=500", streamed, "limit=500", fmt.Sprintf(resumed, 7), fmt.Sprintf(resumed, 7),
				fmt.Sprintf(resumed, 8), fmt.Sprintf(resumed, 8))
			if !strings.Contains(log.String(), errSilent.Error()) {
				t.Errorf("the log is\n%s", log.String())
			}
		})
	})
}

// Followers of many agents start apart, and come back apart.
func TestFollowSpreads(t *testing.T) {
	w := dialects(t)[0]
	synctest.Test(t, func(t *testing.T) {
		zero := time.Now()
		const n = 50
		first, second := map[time.Duration]bool{}, map[time.Duration]bool{}
		var mu sync.Mutex
		ctx, cancel := context.WithCancel(t.Context())
		for range n {
			f, _, _, _ := localFollower(t, w, reply{status: http.StatusBadGateway})
			f.spread = startSpread
			calls := 0
			f.heard = func() { t.Error("nothing is to be heard") }
			f.example = nil // nothing is to be read either
			c := f.client.(*rest.RESTClient)
			c.Client.Transport = roundTripper(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				calls++
				switch since := time.Since(zero); calls {
				case 1:
					first[since] = true
					if since >= startSpread {
						t.Errorf("the first request comes after %v", since)
					}
				case 2:
					second[since] = true
				}
				return nil, errors.New("no route")
			})
			go f.run(ctx)
		}
		time.Sleep(startSpread + 2*backoffFirst)
		cancel()
		synctest.Wait()
		if len(first) < n*9/10 || len(second) < n*9/10 {
			t.Errorf("%d followers start at %d instants and come back at %d", n, len(first), len(second))
		}
	})
}

// A server that is away for long is asked at the slowest pace, and what it has to
// say of that is said once a minute.
func TestFollowPatience(t *testing.T) {
	w := dialects(t)[0]
	synctest.Test(t, func(t *testing.T) {
		f, s, rec, log := localFollower(t, w, reply{body: w.end("7")},
			reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable})
		f.start(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		rec.expect(t, "begin", "complete 7")
		least, most := int(time.Hour/(2*backoffMost)), int(time.Hour/backoffMost)+10
		if n := len(s.queries()); n < least || n > most {
			t.Errorf("%d requests in an hour, want %d to %d", n, least, most)
		}
		if n := strings.Count(log.String(), "can't be followed"); n > 61 || n < 30 {
			t.Errorf("%d lines are logged in an hour", n)
		}
	})
}

// What a follower asks for is what it was made for, and a refusal says which rule
// of which namespace is missing.
func TestFollowForbidden(t *testing.T) {
	w := dialects(t)[0]
	s := newScript(t, w,
		reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
		reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
		reply{body: w.end("7"), open: true})
	f, rec, log := s.follower(t)
	f.namespace, f.fields = "shop", "spec.nodeName=n1"
	var err error
	if f.labels, err = labels.Parse("a in (b)"); err != nil {
		t.Fatal(err)
	}
	f.start(t)
	rec.expect(t, "begin", "complete 7")
	s.mu.Lock()
	u := s.seen[0].URL
	s.mu.Unlock()
	if q := u.Query(); u.Path != "/api/v1/namespaces/shop/services" || q.Get("fieldSelector") != f.fields || q.Get("labelSelector") != "a in (b)" {
		t.Errorf("it asks for %s", u)
	}
	const rule = `Role in the namespace shop) of the agent's ServiceAccount: {apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\", \"watch\"]}`
	if got := log.String(); strings.Count(got, "can't be followed") != 1 || !strings.Contains(got, rule) || !strings.Contains(got, "namespace=shop") {
		t.Errorf("the log is\n%s", got)
	}
}

// Only the metadata of objects is asked for, and a server that sends them whole is
// understood.
func TestFollowMetadata(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		meta := func(version string) *metav1.PartialObjectMetadata {
			m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
			m.Name, m.ResourceVersion = "x", version
			return m
		}
		end := meta("7")
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		whole := &corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}}
		whole.Name, whole.ResourceVersion = "y", "8"
		whole.Spec.Finalizers = []corev1.FinalizerName{"kubernetes"}
		s := newScript(t, w, reply{open: true, body: slices.Concat(
			w.event(watch.Added, w.object(meta("3"))), w.event(watch.Bookmark, w.object(end)), w.event(watch.Added, w.object(whole)))})
		f, rec, _ := s.follower(t)
		f.resource, f.metadata = namespaces, true
		f.example = func() runtime.Object { return &metav1.PartialObjectMetadata{} }
		f.start(t)
		rec.expect(t, "begin", "put x@3", "complete 7", "put y@8 live")
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.seen[0].Header.Get("Accept"); !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;") {
			t.Errorf("it accepts %q", got)
		}
	})
}

// The pauses between tries grow, differ, and end at twice the most; a server may
// ask for one.
func TestFollowBackoff(t *testing.T) {
	f := &follower{retry: backoffFirst}
	for failed := range 40 {
		low, high := f.retry<<min(max(failed-1, 0), 20), f.retry<<min(failed, 20)
		if failed == 0 {
			low = 0
		}
		low, high = min(low, backoffMost), min(high, 2*backoffMost)
		seen := map[time.Duration]bool{}
		for range 100 {
			d := f.backoff(failed)
			seen[d] = true
			if d < low || d >= high {
				t.Fatalf("after %d failures it waits for %v, want [%v, %v)", failed, d, low, high)
			}
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures: %d different pauses of 100", failed, len(seen))
		}
	}
	for seconds, want := range map[int]time.Duration{0: 0, 7: 7 * time.Second, 9999: backoffMost, -3: 0} {
		if got := asked(apierrors.NewTooManyRequests("slow down", seconds)); got != want {
			t.Errorf("asked for %d s it waits for %v", seconds, got)
		}
	}
	if got := asked(errors.New("no status")); got != 0 {
		t.Errorf("not asked for a pause it waits for %v", got)
	}
}

// getNode gives the zone of a node and no more.
func TestGetNode(t *testing.T) {
	inDialects(t, func(t *testing.T, w dialect) {
		node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		node.Labels = map[string]string{zoneLabel: "z1"}
		s := newScript(t, w,
			reply{body: w.object(node)},
			reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
			reply{body: []byte("<html>")},
			reply{body: w.object(expiredStatus())})
		f, _, _ := s.follower(t)
		if zone, err := getNode(t.Context(), f.client, "n1"); zone != "z1" || err != nil {
			t.Errorf("zone %q, error %v", zone, err)
		}
		for range 3 {
			if zone, err := getNode(t.Context(), f.client, "n1"); zone != "" || err == nil || !strings.Contains(err.Error(), "node n1") {
				t.Errorf("zone %q, error %v", zone, err)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.seen) != 4 || s.seen[0].URL.Path != "/api/v1/nodes/n1" {
			t.Errorf("%d requests, the first for %s", len(s.seen), s.seen[0].URL)
		}
	})
}
