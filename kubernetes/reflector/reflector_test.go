// Internal: tests reflector.

package reflector

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/poll"
)

// A list is streamed; the watch continues after it and, when it breaks, from the last
// version of a bookmark or an object.
func TestReflectorStreams(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		s := newScriptedServer(t, w,
			reply{body: slices.Concat(w.encode(watch.Added, "a", "3"), w.encode(watch.Added, "b", "2"), w.endOfList("7"),
				w.encode(watch.Modified, "b", "8"), w.encode(watch.Deleted, "a", "9"))},
			reply{body: w.encode(watch.Bookmark, "", "12")},
			reply{body: w.encode(watch.Added, "c", "13"), open: true})
		f, rec, log := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "put b@2", "complete 7", "put b@8 live", "drop a@9", "put c@13 live")
		s.wantQueries(t, streamed, fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 12))
		if n := len(s.queries()); n != 3 {
			t.Errorf("%d requests, want 3", n)
		}
		if got := log.String(); strings.Contains(got, "object skipped") {
			t.Errorf("the log is\n%s", got)
		}
	})
}

// Deletions and additions during a streamed list are applied.
func TestReflectorDeletesWhileListing(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		s := newScriptedServer(t, w, reply{open: true, body: slices.Concat(
			w.encode(watch.Added, "a", "3"), w.encode(watch.Deleted, "a", "5"), w.encode(watch.Modified, "b", "6"), w.endOfList("7"))})
		f, rec, _ := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "drop a@5", "put b@6", "complete 7")
	})
}

// A list that breaks off never ends; a new one begins.
func TestReflectorListBreaks(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		second := w.encode(watch.Added, "b", "4")
		s := newScriptedServer(t, w,
			reply{body: w.encode(watch.Added, "a", "3")},
			reply{body: slices.Concat(w.encode(watch.Added, "a", "3"), second[:len(second)/2])},
			reply{body: slices.Concat(w.encode(watch.Added, "a", "3"), second, w.endOfList("4")), open: true})
		f, rec, _ := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "begin", "put a@3", "begin", "put a@3", "put b@4", "complete 4")
		s.wantQueries(t, streamed, streamed, streamed)
	})
}

// A server that can't stream is asked for pages from then on. An expired continue token
// leads to a new list.
func TestReflectorPages(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		list := func(version, token string, names ...string) reply {
			l := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: token}}
			l.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
			for _, n := range names {
				l.Items = append(l.Items, *versioned(n, "2"))
			}
			return reply{body: w.object(l)}
		}
		s := newScriptedServer(t, w,
			reply{status: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid},
			list("7", "more", "a", "b"),
			reply{status: http.StatusGone, reason: metav1.StatusReasonExpired},
			list("8", "more", "a"),
			list("8", "", "c"),
			reply{body: w.event(watch.Error, w.object(expiredStatus()))},
			list("9", ""),
			reply{body: w.encode(watch.Modified, "c", "10"), open: true})
		f, rec, _ := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@2", "put b@2", "begin", "put a@2", "put c@2", "complete 8",
			"begin", "complete 9", "put c@10 live")
		s.wantQueries(t, streamed, "", "continue=more", "", "continue=more",
			fmt.Sprintf(resumed, 8), "", fmt.Sprintf(resumed, 9))
	})
}

// An expired version leads to a new list, whether the response or the stream reports it;
// other errors don't.
func TestReflectorExpires(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		other := expiredStatus()
		other.Code, other.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		s := newScriptedServer(t, w,
			reply{body: w.endOfList("7")},
			reply{status: http.StatusGone, reason: metav1.StatusReasonGone},
			reply{body: w.endOfList("8")},
			reply{body: w.event(watch.Error, w.object(expiredStatus()))},
			reply{body: w.endOfList("9")},
			reply{body: w.event(watch.Error, w.object(other))},
			reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable},
			reply{body: w.encode(watch.Added, "a", "10"), open: true})
		f, rec, log := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "complete 7", "begin", "complete 8", "begin", "complete 9", "put a@10 live")
		s.wantQueries(t, streamed, fmt.Sprintf(resumed, 7), streamed, fmt.Sprintf(resumed, 8), streamed,
			fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 9), fmt.Sprintf(resumed, 9))
		poll.Until(t, "the recovery", func() bool {
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			return strings.Contains(lines[len(lines)-1], "API server available again")
		})
		if got := log.String(); !strings.Contains(got, "error event: ") || !strings.Contains(got, "verb=watch") {
			t.Errorf("the log is\n%s", got)
		}
	})
}

// A restart of the server, which no longer knows the version, is an outage at most: that the version has expired is no
// error.
func TestReflectorExpiresAfterRestart(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		s := newScriptedServer(t, w,
			reply{body: w.endOfList("7")},
			reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable},
			reply{body: w.event(watch.Error, w.object(expiredStatus()))},
			reply{body: w.endOfList("8"), open: true})
		f, rec, log := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "complete 7", "begin", "complete 8")
		poll.Until(t, "the recovery", func() bool { return strings.Contains(log.String(), "API server available again") })
		if got := log.String(); strings.Count(got, "level=ERROR") != 1 || strings.Contains(got, "rejects") {
			t.Errorf("the log is\n%s", got)
		}
	})
}

// A server that restarts twice is asked for a list each time as soon as it says that the version has expired, and that is no error.
func TestReflectorExpiresAfterRestarts(t *testing.T) {
	w := encodings(t)[0]
	expired := reply{body: w.event(watch.Error, w.object(expiredStatus()))}
	s := newScriptedServer(t, w,
		reply{body: w.endOfList("7")}, expired, reply{body: w.endOfList("8")}, expired, reply{body: w.endOfList("9"), open: true})
	f, rec, log := s.newReflector(t)
	f.loseServer(2, 5)
	f.start(t)
	rec.expect(t, "begin", "complete 7", "begin", "complete 8", "begin", "complete 9")
	if got := log.String(); strings.Contains(got, "rejects") {
		t.Errorf("the log is\n%s", got)
	}
}

// A server that starts forbids everything until it has read the roles: that is part of its outage, and no role lacks a rule.
func TestReflectorForbiddenAtStart(t *testing.T) {
	w := encodings(t)[0]
	forbidden := reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden}
	s := newScriptedServer(t, w, reply{body: w.endOfList("7")}, forbidden, forbidden, reply{body: w.encode(watch.Added, "a", "8"), open: true})
	f, rec, log := s.newReflector(t)
	f.loseServer(2, 3)
	f.start(t)
	rec.expect(t, "begin", "complete 7", "put a@8 live")
	poll.Until(t, "the recovery", func() bool { return strings.Contains(log.String(), "API server available again") })
	if got := log.String(); strings.Count(got, "level=ERROR") != 1 || strings.Contains(got, "ClusterRole") {
		t.Errorf("the log is\n%s", got)
	}
}

// loseServer lets the requests of these numbers find no server.
func (f *Reflector) loseServer(numbers ...int) {
	c, n := f.Client.(*rest.RESTClient), 0
	inner := c.Client.Transport
	c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
		if n++; slices.Contains(numbers, n) {
			return nil, errors.New("connection refused")
		}
		return inner.RoundTrip(req)
	})
}

// A watch that begins without a version may be compressed, with a gzip member for each flush (Kubernetes 1.37). No event
// waits for the next one.
func TestReflectorCompressedWatch(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		s := &scriptedServer{wire: w, Server: httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("Content-Type", w.contentType)
			rw.Header().Set("Content-Encoding", req.Header.Get("Accept-Encoding"))
			for _, event := range [][]byte{w.encode(watch.Added, "a", "3"), w.endOfList("7"), w.encode(watch.Modified, "a", "8")} {
				z := gzip.NewWriter(rw)
				_, err := z.Write(event)
				if err = errors.Join(err, z.Flush(), z.Close(), http.NewResponseController(rw).Flush()); err != nil {
					t.Error(err)
				}
			}
			<-req.Context().Done()
		}))}
		t.Cleanup(s.Close)
		f, rec, _ := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@3", "complete 7", "put a@8 live")
	})
}

// A server that returns after a long time and no longer knows the version is soon asked for
// a list; one that forgets each list's version is asked at growing intervals.
func TestReflectorExpiresLate(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		gone := reply{body: w.event(watch.Error, w.object(expiredStatus()))}
		away := reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable}
		synctest.Test(t, func(t *testing.T) {
			replies := append([]reply{{body: w.endOfList("7")}}, slices.Repeat([]reply{away}, 40)...)
			comeback := len(replies)
			replies = append(replies, slices.Repeat([]reply{gone, {body: w.endOfList("8")}}, 10)...)
			f, s, _, _ := newLocalReflector(t, w, replies...)
			var asked []time.Time
			c := f.Client.(*rest.RESTClient)
			inner := c.Client.Transport
			c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				asked = append(asked, time.Now())
				return inner.RoundTrip(req)
			})
			f.start(t)
			time.Sleep(time.Hour)
			synctest.Wait()
			if len(asked) < len(replies) {
				t.Fatalf("%d requests, want %d and more: %q", len(asked), len(replies), s.queries())
			}
			if d := asked[comeback].Sub(asked[comeback-1]); d < maxBackoff {
				t.Errorf("the server is asked again after %v: this test shows nothing", d)
			}
			if d := asked[comeback+1].Sub(asked[comeback]); d >= 2*minBackoff {
				t.Errorf("the list is asked for after %v, want less than %v", d, 2*minBackoff)
			}
			last := asked[comeback+18]
			if d := asked[comeback+19].Sub(last); d < maxBackoff {
				t.Errorf("the tenth list in a row is asked for after %v", d)
			}
		})
	})
}

// Errors in streams are one outage, which the start of the next stream does not end; so are
// streams that all end early.
func TestReflectorErrorInStream(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		failure := expiredStatus()
		failure.Code, failure.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		fails := reply{body: w.event(watch.Error, w.object(failure))}
		for _, c := range []struct {
			name, says string
			replies    []reply
		}{
			{"errors", "too old", []reply{fails, fails, fails}},
			{"early ends", errEndedEarly.Error(), []reply{{body: []byte{}}, {body: []byte{}}, {body: []byte{}}}},
		} {
			t.Run(c.name, func(t *testing.T) {
				replies := slices.Concat([]reply{{body: w.endOfList("7")}}, c.replies, []reply{{body: w.encode(watch.Added, "a", "8"), open: true}})
				s := newScriptedServer(t, w, replies...)
				f, rec, log := s.newReflector(t)
				f.start(t)
				rec.expect(t, "begin", "complete 7", "put a@8 live")
				got := log.String()
				if strings.Count(got, "API server unavailable") != 1 || strings.Count(got, "API server available again") != 1 || !strings.Contains(got, c.says) {
					t.Errorf("the log is\n%s", got)
				}
			})
		}
	})
}

// An unreadable object affects no other.
func TestReflectorSkips(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
		pod.Name = "p"
		large := versioned("large", "6")
		large.Annotations = map[string]string{"x": strings.Repeat("x", maxEventBytes)}
		almost := versioned("almost", "5")
		almost.Annotations = map[string]string{"x": strings.Repeat("x", maxEventBytes-1000)}
		broken := w.encode(watch.Added, "broken", "4")
		broken = bytes.Replace(broken, []byte(`"name":"broken"`), []byte(`"name":[1,2,3]`), 1)
		broken = bytes.Replace(broken, []byte("\n\006broken"), []byte("\n\177broken"), 1)
		s := newScriptedServer(t, w, reply{open: true, body: slices.Concat(
			w.encode(watch.Added, "a", "2"), broken, w.event(watch.Added, w.object(pod)), w.event(watch.Added, w.object(expiredStatus())),
			w.event(watch.Added, w.object(almost)), w.event(watch.Added, w.object(large)), w.encode("NONSENSE", "n", "6"), w.endOfList("7"),
			w.encode(watch.Added, "b", "8"))})
		f, rec, log := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "put a@2", "put almost@5", "complete 7", "put b@8 live")
		for _, want := range []string{`a \"Pod\" in place of a Service`, "has a *v1.Status", "exceed the limit", `unknown type \"NONSENSE\"`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log doesn't say %q:\n%s", want, log.String())
			}
		}
		if n := strings.Count(log.String(), "object skipped"); n != 5 {
			t.Errorf("%d objects skipped, want 5:\n%s", n, log.String())
		}
	})
}

// Invalid data ends the stream, and the watch resumes.
func TestReflectorGarbage(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		garbage := []byte("\x00\x00\x00\x05\xff\xff\xff\xff\xff")
		if w.name == "JSON" {
			garbage = []byte("]]\n")
		}
		s := newScriptedServer(t, w,
			reply{body: []byte("<html>your session has ended</html>")},
			reply{body: slices.Concat(w.endOfList("7"), garbage, w.encode(watch.Added, "lost", "8"))},
			reply{body: w.encode(watch.Added, "a", "8"), open: true})
		f, rec, log := s.newReflector(t)
		f.start(t)
		rec.expect(t, "begin", "begin", "complete 7", "put a@8 live")
		s.wantQueries(t, streamed, streamed, fmt.Sprintf(resumed, 7))
		if n := strings.Count(log.String(), "API server unavailable"); n != 2 {
			t.Errorf("%d outages, want 2:\n%s", n, log.String())
		}
	})
}

// A server that stays silent, from the start or later, is given up. Lists are then streamed
// and paged in turn.
func TestReflectorSilence(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		l := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		l.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
		synctest.Test(t, func(t *testing.T) {
			f, s, rec, log := newLocalReflector(t, w,
				reply{silent: true},
				reply{silent: true},
				reply{body: w.encode(watch.Added, "a", "3"), open: true},
				reply{body: w.object(l)},
				reply{open: true},
				reply{body: slices.Concat(w.endOfList("7"), w.encode(watch.Added, "b", "8")), open: true},
				reply{silent: true},
				reply{body: slices.Concat(w.encode(watch.Added, "c", "9"), w.endOfList("9")), open: true})
			f.start(t)
			time.Sleep(7*watchSilenceTimeout + 7*2*maxBackoff)
			synctest.Wait()
			rec.expect(t, "begin", "begin", "put a@3", "begin", "complete 7", "begin", "complete 7", "put b@8 live",
				"begin", "put c@9", "complete 9")
			s.wantQueries(t, streamed, "", streamed, "", fmt.Sprintf(resumed, 7), streamed,
				fmt.Sprintf(resumed, 8), streamed)
			if !strings.Contains(log.String(), errSilent.Error()) {
				t.Errorf("the log is\n%s", log.String())
			}
		})
	})
}

// The reflectors of many agents start, and resume, at different times.
func TestReflectorStartDelay(t *testing.T) {
	const maxStartDelay = 500 * time.Millisecond
	w := encodings(t)[0]
	synctest.Test(t, func(t *testing.T) {
		zero := time.Now()
		const n = 50
		first, second := map[time.Duration]bool{}, map[time.Duration]bool{}
		var mu sync.Mutex
		ctx, cancel := context.WithCancel(t.Context())
		for range n {
			f, _, _, _ := newLocalReflector(t, w, reply{status: http.StatusBadGateway})
			f.StartDelay = maxStartDelay
			calls := 0
			f.OnActivity = func() { t.Error("nothing is to be heard") }
			f.NewObject = nil // nothing is to be read either
			c := f.Client.(*rest.RESTClient)
			c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				calls++
				switch since := time.Since(zero); calls {
				case 1:
					first[since] = true
					if since >= maxStartDelay {
						t.Errorf("the first request comes after %v", since)
					}
				case 2:
					second[since] = true
				}
				return nil, errors.New("no route")
			})
			go f.Run(ctx)
		}
		time.Sleep(maxStartDelay + 2*minBackoff)
		cancel()
		synctest.Wait()
		if len(first) < n*9/10 || len(second) < n*9/10 {
			t.Errorf("%d reflectors start at %d instants and come back at %d", n, len(first), len(second))
		}
	})
}

// A server that can't be reached is tried every few seconds by one of its reflectors, and rarely by the others. All of
// them follow soon after the first that succeeds, even if the server is not ready for them at once.
func TestReflectorsAwaitReturn(t *testing.T) {
	w := encodings(t)[0]
	synctest.Test(t, func(t *testing.T) {
		const reflectors, away = 5, time.Hour
		const most = 4*probePause + 4*minBackoff // two pauses of the one that probes, and two of the others
		outages, zero := NewOutageLog(slog.New(slog.DiscardHandler)), time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		listed := map[int]time.Duration{}
		for i := range reflectors {
			f, _, _, _ := newLocalReflector(t, w, reply{status: http.StatusServiceUnavailable}, reply{open: true, body: w.endOfList("7")})
			f.Outages = outages
			f.OnActivity = func() {
				mu.Lock()
				defer mu.Unlock()
				listed[i] = time.Since(zero)
			}
			c := f.Client.(*rest.RESTClient)
			inner := c.Client.Transport
			c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				if time.Since(zero) >= away {
					return inner.RoundTrip(req)
				}
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, time.Since(zero))
				return nil, errors.New("no route")
			})
			f.start(t)
		}
		time.Sleep(away + most)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(listed) != reflectors {
			t.Errorf("%d of %d reflectors have listed %v after the return: %v", len(listed), reflectors, most, listed)
		}
		slices.Sort(tries)
		for i := 1; i < len(tries); i++ {
			if d := tries[i] - tries[i-1]; d > 2*probePause {
				t.Errorf("nobody tries from %v on, for %v", tries[i-1], d)
			}
		}
		if most := int(away/probePause + reflectors*away/maxBackoff + 10*reflectors); len(tries) > most {
			t.Errorf("%d requests in %v, want at most %d", len(tries), away, most)
		}
	})
}

// A check of the rights does not outlast an outage by a pause of its own.
func TestCheckAccessAwaitsReturn(t *testing.T) {
	w := encodings(t)[0]
	synctest.Test(t, func(t *testing.T) {
		const checks, away = 5, 10 * time.Minute
		outages, back := NewOutageLog(slog.New(slog.DiscardHandler)), time.Now().Add(away)
		newReflector := func(r reply) *Reflector {
			f, _, _, _ := newLocalReflector(t, w, r)
			f.Outages = outages
			c := f.Client.(*rest.RESTClient)
			inner := c.Client.Transport
			c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				if time.Now().Before(back) {
					return nil, errors.New("no route")
				}
				return inner.RoundTrip(req)
			})
			return f
		}
		for range checks {
			f := newReflector(reply{body: w.object(&metav1.PartialObjectMetadataList{})})
			go f.CheckAccess(t.Context())
		}
		newReflector(reply{open: true, body: w.endOfList("7")}).start(t)
		time.Sleep(away + 2*probePause + 2*minBackoff)
		synctest.Wait()
		if got := outages.Failing(); len(got) != 0 {
			t.Errorf("after the return %v fails", got)
		}
	})
}

// After a long outage, a server that forbids everything until it has read the roles is asked again soon.
func TestForbiddenAtStartAwaitsReturn(t *testing.T) {
	w := encodings(t)[0]
	synctest.Test(t, func(t *testing.T) {
		const away, starts = 10 * time.Minute, 10 * time.Second
		f, _, _, _ := newLocalReflector(t, w, reply{open: true, body: w.endOfList("7")})
		f.Outages = NewOutageLog(slog.New(slog.DiscardHandler))
		begin, c := time.Now(), f.Client.(*rest.RESTClient)
		inner := c.Client.Transport
		c.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
			switch since := time.Since(begin); {
			case since < away:
				return nil, errors.New("no route")
			case since < away+starts:
				forbidden := httptest.NewRecorder()
				forbidden.WriteHeader(http.StatusForbidden)
				return forbidden.Result(), nil
			}
			return inner.RoundTrip(req)
		})
		f.start(t)
		time.Sleep(away + starts + 2*probePause + 2*minBackoff)
		synctest.Wait()
		if got := f.Outages.Failing(); len(got) != 0 {
			t.Errorf("after the return %v fails", got)
		}
	})
}

// tooManyRequests is the reply of a server that asks for patience.
func tooManyRequests(seconds int) *http.Response {
	busy := httptest.NewRecorder()
	busy.Header().Set("Retry-After", strconv.Itoa(seconds))
	busy.WriteHeader(http.StatusTooManyRequests)
	return busy.Result()
}

// A reflector that the server has asked to wait does, although the server replies to another one, until the server says that it
// has started. What the server asks for after that holds.
func TestReflectorsObeyRetryAfter(t *testing.T) {
	const wait, never = 20 * time.Second, time.Hour
	for name, c := range map[string]struct{ ready, least, most time.Duration }{
		"not ready":     {never, wait, wait + 2*probePause},
		"ready at once": {0, 0, 2*probePause + minBackoff},
		"ready later":   {10 * time.Second, 10 * time.Second, 10*time.Second + 2*probePause + minBackoff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const reflectors = 3 // which are asked to wait twice, except for one that the server is silent to first
				outages, zero := NewOutageLog(slog.New(slog.DiscardHandler)), time.Now()
				var mu sync.Mutex
				asked := make([][]time.Duration, reflectors)
				for i := range asked {
					f, _, _, _ := newLocalReflector(t, encodings(t)[0], reply{open: true, body: encodings(t)[0].endOfList("7")})
					f.Outages = outages
					client := f.Client.(*rest.RESTClient)
					inner := client.Client.Transport
					client.Client.Transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
						mu.Lock()
						defer mu.Unlock()
						if req.URL.Path == "/readyz" {
							state := httptest.NewRecorder()
							if time.Since(zero) < c.ready {
								state.WriteHeader(http.StatusInternalServerError)
							}
							return state.Result(), nil
						}
						switch asked[i] = append(asked[i], time.Since(zero)); {
						case i == 0 && len(asked[i]) == 1:
							return nil, errors.New("no route")
						case i > 0 && len(asked[i]) <= 2:
							return tooManyRequests(int(wait / time.Second)), nil
						}
						return inner.RoundTrip(req)
					})
					f.start(t)
					synctest.Wait() // the first one has noticed that the server is away
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				for i, at := range asked {
					switch {
					case i == 0 && (len(at) != 2 || at[1] > 2*probePause):
						t.Errorf("the one that was not asked to wait tried at %v", at)
					case i > 0 && (len(at) != 3 || at[1] < c.least || at[1] > c.most || at[2]-at[1] < wait):
						t.Errorf("one that was asked to wait for %v tried at %v, want the second time from %v to %v", wait, at, c.least, c.most)
					}
				}
			})
		})
	}
}

// A server that is away for long is asked at the longest interval, and logged once a
// minute.
func TestReflectorRetryAfter(t *testing.T) {
	w := encodings(t)[0]
	synctest.Test(t, func(t *testing.T) {
		f, s, rec, log := newLocalReflector(t, w, reply{body: w.endOfList("7")},
			reply{status: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable})
		f.start(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		rec.expect(t, "begin", "complete 7")
		least, most := int(time.Hour/(2*maxBackoff)), int(time.Hour/maxBackoff)+10
		if n := len(s.queries()); n < least || n > most {
			t.Errorf("%d requests in an hour, want %d to %d", n, least, most)
		}
		if n := strings.Count(log.String(), "API server unavailable"); n != 1 {
			t.Errorf("%d lines for the start, want 1", n)
		}
		if n := strings.Count(log.String(), "API server still unavailable"); n != 59 {
			t.Errorf("%d summaries in an hour, want 59", n)
		}
	})
}

// The request has the reflector's settings, and a rejection names the missing RBAC rule
// with the namespace.
func TestReflectorForbidden(t *testing.T) {
	w := encodings(t)[0]
	s := newScriptedServer(t, w,
		reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
		reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
		reply{body: w.endOfList("7"), open: true})
	f, rec, log := s.newReflector(t)
	f.Namespace, f.Fields = "shop", "spec.nodeName=n1"
	var err error
	if f.Labels, err = labels.Parse("a in (b)"); err != nil {
		t.Fatal(err)
	}
	f.start(t)
	rec.expect(t, "begin", "complete 7")
	s.mu.Lock()
	u := s.seen[0].URL
	s.mu.Unlock()
	if q := u.Query(); u.Path != "/api/v1/namespaces/shop/services" || q.Get("fieldSelector") != f.Fields || q.Get("labelSelector") != "a in (b)" {
		t.Errorf("it asks for %s", u)
	}
	const rule = `Role in the namespace shop) of the agent's ServiceAccount: {apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\", \"watch\"]}`
	if got := log.String(); strings.Count(got, "API server rejects request") != 1 || !strings.Contains(got, rule) || !strings.Contains(got, "namespace=shop") {
		t.Errorf("the log is\n%s", got)
	}
}

// A list by a request of its own, where the server could stream, does not wait for the client's rate.
func TestReflectorUnstreamed(t *testing.T) {
	w := encodings(t)[0]
	page := func(token string) reply {
		l := &corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: token}}
		return reply{body: w.object(l)}
	}
	s := newScriptedServer(t, w, page("more"), page(""), reply{open: true})
	f, rec, _ := s.newReflector(t)
	conn, err := Connect(&rest.Config{Host: s.URL, QPS: 1e-6, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if f.Client, err = conn.Client(corev1.SchemeGroupVersion); err != nil {
		t.Fatal(err)
	}
	f.Unstreamed = true
	f.start(t)
	rec.expect(t, "begin", "complete 7")
	s.wantQueries(t, "", "continue=more", fmt.Sprintf(resumed, 7))
}

// A list in JSON that is too long is asked for in pages.
func TestReflectorLongList(t *testing.T) {
	w := encodings(t)[1]
	l := &corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	s := newScriptedServer(t, w, reply{body: bytes.Repeat([]byte(" "), maxPageBytes+1)}, reply{body: w.object(l)}, reply{open: true})
	f, rec, _ := s.newReflector(t)
	f.Unstreamed = true
	f.start(t)
	rec.expect(t, "begin", "begin", "complete 7")
	s.wantQueries(t, "", "limit=100", fmt.Sprintf(resumed, 7))
}

// Only metadata is requested, and a server that sends whole objects is understood.
func TestReflectorMetadata(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
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
		s := newScriptedServer(t, w, reply{open: true, body: slices.Concat(
			w.event(watch.Added, w.object(meta("3"))), w.event(watch.Bookmark, w.object(end)), w.event(watch.Added, w.object(whole)))})
		f, rec, _ := s.newReflector(t)
		f.Resource, f.MetadataOnly = schema.GroupResource{Resource: "namespaces"}, true
		f.NewObject = func() runtime.Object { return &metav1.PartialObjectMetadata{} }
		f.start(t)
		rec.expect(t, "begin", "put x@3", "complete 7", "put y@8 live")
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.seen[0].Header.Get("Accept"); !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;") {
			t.Errorf("it accepts %q", got)
		}
	})
}

// The pauses grow, differ, and stay below twice the longest; a server may ask for a pause.
func TestReflectorBackoff(t *testing.T) {
	for failed := range 40 {
		low, high := minBackoff<<min(max(failed-1, 0), 20), minBackoff<<min(failed, 20)
		if failed == 0 {
			low = 0
		}
		low, high = min(low, maxBackoff), min(high, 2*maxBackoff)
		seen := map[time.Duration]bool{}
		for range 100 {
			d := Backoff(0, failed, nil)
			seen[d] = true
			if d < low || d >= high {
				t.Fatalf("after %d failures it waits for %v, want [%v, %v)", failed, d, low, high)
			}
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures: %d different pauses of 100", failed, len(seen))
		}
	}
	for seconds, want := range map[int]time.Duration{0: 0, 7: 7 * time.Second, 9999: maxBackoff, -3: 0} {
		if got := Backoff(1, 0, apierrors.NewTooManyRequests("slow down", seconds)); got != want {
			t.Errorf("asked for %d s it waits for %v", seconds, got)
		}
	}
	if got := Backoff(1, 0, errors.New("no status")); got != 0 {
		t.Errorf("not asked for a pause it waits for %v", got)
	}
}
