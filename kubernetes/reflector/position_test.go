// Internal: tests the tracker.

package reflector

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodens-dns/nodens/test/poll"
)

// A reflector goes on from a Position with a plain watch, and lists if the version has expired.
func TestReflectorResumes(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		s := newScriptedServer(t, w,
			reply{body: slices.Concat(w.encode(watch.Added, "a", "8"), w.encode(watch.Deleted, "old", "9"))},
			reply{status: http.StatusGone, reason: metav1.StatusReasonExpired},
			reply{body: slices.Concat(w.encode(watch.Added, "a", "8"), w.encode(watch.Added, "b", "20"), w.endOfList("30")), open: true})
		f, rec, _ := s.newReflector(t)
		f.Resume = Position{7, []ObjectVersion{{"", "old", 6}, {"", "older", 5}}}
		f.start(t)
		rec.expect(t, "put a@8 live", "drop old@9", "begin", "put a@8", "put b@20", "complete 30")
		s.wantQueries(t, fmt.Sprintf(resumed, 7), fmt.Sprintf(resumed, 9), streamed)
		want := Position{30, []ObjectVersion{{"", "b", 20}, {"", "a", 8}}}
		poll.Until(t, "the position", func() bool { return cmp.Equal(want, f.Position()) })
	})
}

// A Position has the newest objects that exist. During a list there is none.
func TestPosition(t *testing.T) {
	var f Reflector
	const n = maxNewest + 5
	var want []ObjectVersion
	for i := range n {
		f.tracker.note(versioned(fmt.Sprint("s", i*7%n), fmt.Sprint(100+i*7%n)), false, false)
		want = append(want, ObjectVersion{"", fmt.Sprint("s", n-1-i), uint64(99 + n - i)})
	}
	if p := f.Position(); p.Version != 0 || p.Newest != nil {
		t.Errorf("during a list: %v", p)
	}
	f.tracker.reach(200)
	if d := cmp.Diff(Position{200, want[:maxNewest]}, f.Position()); d != "" {
		t.Errorf("after a list, -want +got:\n%s", d)
	}
	f.tracker.note(versioned(want[3].Name, "201"), false, true)
	f.tracker.note(versioned(want[1].Name, "202"), true, true)
	f.tracker.note(versioned("new", "203"), false, true)
	want = slices.Concat([]ObjectVersion{{"", "new", 203}, {"", want[3].Name, 201}, want[0], want[2]}, want[4:maxNewest])
	if d := cmp.Diff(Position{203, want}, f.Position()); d != "" {
		t.Errorf("after events, -want +got:\n%s", d)
	}
	f.tracker.note(versioned("strange", "x"), false, true)
	if p := f.Position(); p.Version != 0 {
		t.Errorf("after a version that is no number: %v", p)
	}
}

// What the API server says of the objects of a Position decides whether it has the same history.
func TestVerify(t *testing.T) {
	saved := []Position{
		{100, []ObjectVersion{{"a", "x", 90}, {"a", "y", 80}}},
		{99, []ObjectVersion{{"b", "z", 70}}},
	}
	list := func(version, name, object string) reply {
		return reply{body: fmt.Appendf(nil, `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":%q},"items":[{"metadata":{"name":%q,"resourceVersion":%q}}]}`,
			version, name, object)}
	}
	none := reply{body: []byte(`{"metadata":{"resourceVersion":"150"},"items":[]}`)}
	long := Position{Version: 150}
	for i := range 60 {
		long.Newest = append(long.Newest, ObjectVersion{"a", fmt.Sprint("x", i), uint64(140 - i)})
	}
	for name, tt := range map[string]struct {
		replies  []reply
		want     Verdict
		requests int
		setBacks int
	}{
		"unchanged":                 {[]reply{list("100", "x", "90")}, SameHistory, 1, 0},
		"changed since":             {[]reply{list("150", "x", "101"), list("150", "y", "80")}, SameHistory, 2, 0},
		"deleted since":             {[]reply{none, list("150", "y", "102"), list("150", "z", "70")}, SameHistory, 3, 0},
		"all changed":               {[]reply{none, none, none}, Unknown, 3, 0},
		"another version":           {[]reply{list("150", "x", "89")}, OtherHistory, 1, 0},
		"changed at another time":   {[]reply{list("150", "x", "100")}, OtherHistory, 1, 0},
		"created anew":              {[]reply{none, list("150", "y", "95")}, OtherHistory, 2, 0},
		"set back":                  {[]reply{list("99", "x", "90")}, OtherHistory, 1, 1},
		"not a number":              {[]reply{list("v1", "x", "90"), list("v1", "y", "80"), list("v1", "z", "70")}, Unknown, 3, 0},
		"forbidden":                 {[]reply{{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden}}, Unknown, 3, 0},
		"away for a while":          {[]reply{{status: http.StatusServiceUnavailable}, {status: http.StatusTooManyRequests}, list("100", "x", "90")}, SameHistory, 3, 0},
		"away for long":             {[]reply{{status: http.StatusServiceUnavailable}}, Unknown, maxVerifyFailures, 0},
		"no list":                   {[]reply{{body: []byte("no")}}, Unknown, maxVerifyFailures, 0},
		"an object of another name": {[]reply{list("150", "other", "90"), list("150", "other", "80"), list("150", "z", "70")}, SameHistory, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedServer(t, encodings(t)[1], tt.replies...)
			f, _, log := s.newReflector(t)
			setBacks := 0
			f.History = NewHistory(func(SetBack) { setBacks++ })
			if got := f.Verify(t.Context(), saved); got != tt.want {
				t.Errorf("verdict %d, want %d; the log is\n%s", got, tt.want, log)
			}
			if n := len(s.queries()); n != tt.requests || setBacks != tt.setBacks {
				t.Errorf("%d requests and %d set-backs, want %d and %d", n, setBacks, tt.requests, tt.setBacks)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if at := s.seen[0].URL; at.Path != "/api/v1/namespaces/a/services" || at.Query().Get("fieldSelector") != "metadata.name=x" || !strings.Contains(s.seen[0].Header.Get("Accept"), "as=PartialObjectMetadata") {
				t.Errorf("the first request is %v", at)
			}
		})
	}
	s := newScriptedServer(t, encodings(t)[1], none)
	f, _, _ := s.newReflector(t)
	f.History = NewHistory(nil)
	if got := f.Verify(t.Context(), []Position{long}); got != Unknown {
		t.Errorf("verdict %d of a list without any of the objects", got)
	}
	var asked []string
	for _, req := range s.seen {
		asked = append(asked, strings.TrimPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name="))
	}
	if d := cmp.Diff([]string{"x0", "x1", "x2", "x4", "x8", "x16", "x32"}, asked); d != "" {
		t.Errorf("objects, -want +got:\n%s", d)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := f.Verify(ended, saved); got != Unknown {
		t.Errorf("verdict %d without a request", got)
	}
}
