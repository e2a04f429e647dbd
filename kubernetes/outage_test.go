package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
)

// fakeAPI is the transport to an API server with empty lists. Its watches deliver nothing
// until it goes away, which breaks them.
type fakeAPI struct {
	mu     sync.Mutex
	away   chan struct{}   // closed while the server is away
	denied map[string]bool // plurals of the resources that are forbidden
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{away: make(chan struct{}), denied: make(map[string]bool)}
}

func (f *fakeAPI) stop() { close(f.state()) }

func (f *fakeAPI) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = make(chan struct{})
}

func (f *fakeAPI) state() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.away
}

func (f *fakeAPI) deny(plural string, denied bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denied[plural] = denied
}

func (f *fakeAPI) forbids(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.denied[path[strings.LastIndex(path, "/")+1:]]
}

// RoundTrip implements http.RoundTripper.
func (f *fakeAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	away := f.state()
	select {
	case <-away:
		return nil, errors.New("connection refused")
	default:
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req}
	if f.forbids(req.URL.Path) {
		resp.StatusCode = http.StatusForbidden
		resp.Body = io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no rights","code":403}`))
		return resp, nil
	}
	var first string
	if req.URL.Query().Get("watch") == "" {
		first = `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`
		resp.Body = io.NopCloser(strings.NewReader(first))
		return resp, nil
	}
	if req.URL.Query().Get("sendInitialEvents") != "" {
		first = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
	}
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(first), &watchBody{ctx: req.Context(), away: away, url: req.URL}))
	return resp, nil
}

// watchBody delivers a bookmark each minute until the server goes away.
type watchBody struct {
	ctx  context.Context
	away chan struct{}
	url  *url.URL
	rest []byte
}

func (w *watchBody) Read(b []byte) (int, error) {
	if len(w.rest) == 0 {
		bookmark := time.NewTimer(time.Minute)
		defer bookmark.Stop()
		select {
		case <-w.ctx.Done():
			return 0, w.ctx.Err()
		case <-w.away:
			return 0, io.ErrUnexpectedEOF
		case <-bookmark.C:
			w.rest = []byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}` + "\n")
		}
	}
	n := copy(b, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// runView runs a view of f, with every resource, until the test ends. log must not be
// read while the view works.
func runView(t *testing.T, f *fakeAPI) (v *kubernetes.View, log *bytes.Buffer) {
	t.Helper()
	return runViewOver(t, f)
}

// runViewOver is runView over that transport.
func runViewOver(t *testing.T, over http.RoundTripper) (v *kubernetes.View, log *bytes.Buffer) {
	t.Helper()
	domain, err := wire.ParseName("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	set, err := wire.ParseName("clusterset.local")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{
		Zones: []wire.Name{domain, set}, Multicluster: []wire.Name{set}, Endpoint: "http://192.0.2.1",
		Scope: config.ScopeCluster,
	}
	log = new(bytes.Buffer)
	v, err = kubernetes.Open(cfg, kubernetes.Options{
		Node: "n1", Zone: "z1", Log: slog.New(slog.NewTextHandler(log, nil)),
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return over },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		v.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return v, log
}

// lines returns the lines of log since the last call, by message.
func lines(log *bytes.Buffer) map[string][]string {
	found := make(map[string][]string)
	for line := range strings.Lines(log.String()) {
		_, rest, _ := strings.Cut(line, "msg=")
		message, _, _ := strings.Cut(strings.TrimPrefix(rest, `"`), `"`)
		found[message] = append(found[message], strings.TrimSpace(line))
	}
	log.Reset()
	return found
}

// checkLines compares the numbers of lines by message. want lists the right numbers of
// each, separated by spaces.
func checkLines(t *testing.T, got map[string][]string, want map[string]string) {
	t.Helper()
	for message, list := range got {
		if n := fmt.Sprint(len(list)); !strings.Contains(" "+want[message]+" ", " "+n+" ") {
			t.Errorf("%s lines %q, want one of %q:\n%s", n, message, want[message], strings.Join(list, "\n"))
		}
		for _, line := range list {
			if !strings.Contains(line, "part=kubernetes") || len(line) > 250 && !strings.Contains(line, " fix=") {
				t.Errorf("a line without a part, or too long: %s", line)
			}
		}
	}
	for message, n := range want {
		if got[message] == nil && !strings.HasPrefix(n, "0") {
			t.Errorf("no line %q", message)
		}
	}
}

// An outage of the API server costs a line at the start, one each minute and one at the
// end, though all resources are retried all the time.
func TestOutageOfServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI()
		v, log := runView(t, f)
		time.Sleep(time.Minute)
		synctest.Wait()
		checkLines(t, lines(log), map[string]string{"view synced": "1"})
		if s := v.Stats(); !s.Synced || s.SyncTime <= 0 || s.SyncTime > 10*time.Second {
			t.Errorf("synced %v after %v", s.Synced, s.SyncTime)
		}
		if diff := cmp.Diff(kubernetes.Gaps{}, v.Stats().Gaps, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("gaps before the outage: %s", diff)
		}

		f.stop()
		time.Sleep(10 * time.Minute)
		if got := v.Stats().Gaps.Failing; !slices.Equal(got, []string{"endpointslices", "namespaces", "pods", "serviceimports", "services"}) {
			t.Errorf("failing during the outage: %v", got)
		}
		f.restart()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if g := v.Stats().Gaps; g.Silences != 1 || g.LastSilent < 10*time.Minute || g.LastSilent > 12*time.Minute || time.Since(g.LastSilence) > 2*time.Minute || len(g.Failing) > 0 {
			t.Errorf("gaps after the outage: %+v", g)
		}
		got := lines(log)
		checkLines(t, got, map[string]string{
			"API server unavailable, serving last known data": "1", "API server still unavailable": "9 10", "API server available again": "1",
		})
		const all = "resources=endpointslices,namespaces,pods,serviceimports,services failures="
		summaries := got["API server still unavailable"]
		for _, line := range summaries[:min(len(summaries), 9)] { // a tenth one may come while it is over
			if !strings.Contains(line, all) || !strings.Contains(line, `err="connection refused"`) {
				t.Errorf("a summary without what fails, or why: %s", line)
			}
		}
		if end := got["API server available again"]; len(end) == 1 && !strings.Contains(end[0], " duration=10m") {
			t.Errorf("the end doesn't say how long it took: %s", end[0])
		}
		if v.Stats().SyncTime > 10*time.Second {
			t.Error("the outage has changed the time of the first sync")
		}
	})
}

// A resource that the agent may not read is its own outage, which names the RBAC rule,
// while others go on.
func TestOutageOfOneResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI()
		f.deny("namespaces", true)
		v, log := runView(t, f)
		time.Sleep(150 * time.Second)
		synctest.Wait()
		got := lines(log)
		checkLines(t, got, map[string]string{
			"API server rejects request, nothing listed yet": "1", "API server still rejects request": "2",
		})
		for _, list := range got {
			for _, line := range list {
				if !strings.Contains(line, "=namespaces ") {
					t.Errorf("a line about another resource: %s", line)
				}
			}
		}
		if v.Stats().Synced {
			t.Error("the view is synced without its namespaces")
		}
		if diff := cmp.Diff(kubernetes.Gaps{Unlisted: []string{"namespaces"}, Failing: []string{"namespaces"}}, v.Stats().Gaps); diff != "" {
			t.Errorf("gaps: %s", diff)
		}

		// The server goes away as well: that is a second outage of all resources.
		f.stop()
		time.Sleep(90 * time.Second)
		f.deny("namespaces", false)
		f.restart()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		checkLines(t, lines(log), map[string]string{
			"API server still rejects request": "0 1", "API server no longer rejects request": "1",
			"API server unavailable, serving last known data": "1", "API server still unavailable": "1 2",
			"API server available again": "1", "view synced": "1",
		})
	})
}

// Without ServiceImports, only their own zones wait for them: the cluster's names are denied, and nothing waits for the
// rest.
func TestOutageOfImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeAPI()
		f.deny("serviceimports", true)
		v, log := runView(t, f)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !v.Synced() || !v.Loaded() {
			t.Errorf("synced %v, loaded %v", v.Synced(), v.Loaded())
		}
		checkLines(t, lines(log), map[string]string{
			"view synced": "1", "API server rejects request, nothing listed yet": "1", "API server still rejects request": "0 1",
		})
		if diff := cmp.Diff(kubernetes.Gaps{Unlisted: []string{"serviceimports"}, Failing: []string{"serviceimports"}}, v.Stats().Gaps); diff != "" {
			t.Errorf("gaps: %s", diff)
		}
	})
}

// Before the first sign of life there is none, and requests that fail say why and what to do.
func TestStatsBeforeFirstEvent(t *testing.T) {
	for name, tt := range map[string]struct {
		reply    func(*http.Request) (*http.Response, error)
		err, fix string
	}{
		"refused token": {
			func(req *http.Request) (*http.Response, error) {
				return failure(req, http.StatusUnauthorized, "Unauthorized"), nil
			},
			"says no", "valid token",
		},
		"no rights": {
			func(req *http.Request) (*http.Response, error) {
				return failure(req, http.StatusForbidden, "Forbidden"), nil
			},
			"says no", `verbs: ["list", "watch"]`,
		},
		"no route": {
			func(*http.Request) (*http.Response, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no route to host")}
			},
			"no route to host", "network between the node and the API server",
		},
		"another authority": {
			func(*http.Request) (*http.Response, error) {
				return nil, &tls.CertificateVerificationError{Err: errors.New("unknown authority")}
			},
			"unknown authority", "CA certificate",
		},
		"expired certificate": {
			func(*http.Request) (*http.Response, error) {
				return nil, &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
			},
			"expired", "renew the certificate",
		},
		"another address": {
			func(*http.Request) (*http.Response, error) {
				return nil, &tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "192.0.2.1"}}
			},
			"192.0.2.1", "address that the certificate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before := time.Now()
				v, _ := runViewOver(t, roundTripFunc(tt.reply))
				time.Sleep(time.Minute)
				synctest.Wait()
				st := v.Stats()
				if !st.LastEvent.IsZero() || st.Opened != before {
					t.Errorf("last event %v, opened %v", st.LastEvent, st.Opened)
				}
				if f := st.Failure; f.Err == nil || !strings.Contains(f.Err.Error(), tt.err) || !strings.Contains(f.Fix, tt.fix) {
					t.Errorf("the failure is %+v", f)
				}
			})
		})
	}
}

// roundTripFunc is a transport.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// failure is a reply with an error status.
func failure(req *http.Request, code int, reason string) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"the test says no","code":%d}`, reason, code)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, Body: io.NopCloser(strings.NewReader(body))}
}
