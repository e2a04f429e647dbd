package watch

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
	"github.com/nodens-dns/nodens/test/testlog"
)

// TestResume starts a view of a cluster without a saved view, and then with one, and compares the lists and the bytes.
// After a restart of the API server, which forgets the versions, there are lists again.
func TestResume(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server takes minutes: skipped under -short")
	}
	api := apiserver.Start(t)
	client, err := api.Client()
	check.NoError(t, err)
	world, err := apiobjects.Write(t.Context(), client, apiobjects.LargeCluster(soak.Choose(1000, 10000)))
	check.NoError(t, err)
	for name, scope := range map[string]config.Kubernetes{
		"node": {}, "cluster": {Scope: config.ScopeCluster}, "all": {Scope: config.ScopeCluster, AllEndpoints: true},
	} {
		t.Run(name, func(t *testing.T) {
			scope.Save = filepath.Join(t.TempDir(), "view")
			first := watchOnce(t, api, scope, func(kubernetes.Stats) bool { return true })
			add := clusterIP("added-"+name, "")
			create(t, client, add)
			check.NoError(t, world.ChangeSlices(t.Context(), 20, 1000))
			services := first.stats.Services
			second := watchOnce(t, api, scope, func(s kubernetes.Stats) bool { return s.Services == services+1 })
			check.NoError(t, client.CoreV1().Services(add.Namespace).Delete(t.Context(), add.Name, metav1.DeleteOptions{}))
			third := watchOnce(t, api, scope, func(s kubernetes.Stats) bool { return s.Services == services })
			if first.lists < 3 || second.lists+third.lists > 0 {
				t.Errorf("%d, %d and %d lists, want 3 or more and then none\n%s", first.lists, second.lists, third.lists, second.log)
			}
			if first.stats.Slices != second.stats.Slices || first.stats.Endpoints != third.stats.Endpoints || first.stats.Namespaces != third.stats.Namespaces {
				t.Errorf("the views are %+v, then %+v and %+v", first.stats, second.stats, third.stats)
			}
			if second.received*4 > first.received { // lists are compressed, and the changes meanwhile are not
				t.Errorf("%d bytes with a saved view, %d without", second.received, first.received)
			}
			t.Logf("%d Services, %d EndpointSlices: without a saved view %d lists, %d bytes; with it %d lists, %d bytes (%.1f %%)", first.stats.Services,
				first.stats.Slices, first.lists, first.received, second.lists, second.received, 100*float64(second.received)/float64(first.received))
		})
	}
	t.Run("restarted", func(t *testing.T) {
		scope := config.Kubernetes{Scope: config.ScopeCluster, Save: filepath.Join(t.TempDir(), "view")}
		first := watchOnce(t, api, scope, func(kubernetes.Stats) bool { return true })
		create(t, client, clusterIP("meanwhile", ""))
		api.Stop()
		check.NoError(t, api.Restart(t.Context()))
		create(t, client, clusterIP("afterwards", ""))
		watchOnce(t, api, scope, func(s kubernetes.Stats) bool { return s.Services == first.stats.Services+2 && s.Gaps.Relists > 0 })
	})
}

// watched is what a view did until it was stopped.
type watched struct {
	lists, received uint64 // lists but that of pods
	stats           kubernetes.Stats
	log             string
}

// watchOnce runs a view of the first node until it has everything and done returns true.
func watchOnce(t *testing.T, api *apiserver.Server, cfg config.Kubernetes, done func(kubernetes.Stats) bool) (w watched) {
	t.Helper()
	tap, err := wiretap.Open(api.Addr())
	check.NoError(t, err)
	defer tap.Close()
	text, err := os.ReadFile(api.Kubeconfig(apiserver.Agent))
	check.NoError(t, err)
	cfg.Kubeconfig = filepath.Join(filepath.Dir(cfg.Save), "kubeconfig")
	check.NoError(t, os.WriteFile(cfg.Kubeconfig, []byte(strings.ReplaceAll(string(text), api.Addr(), tap.Addr().String())), 0o600))
	var lists, following atomic.Int64
	log := new(testlog.Buffer)
	v, err := kubernetes.Open(&cfg, kubernetes.Options{
		Node: apiobjects.Node(0), Zone: apiobjects.Zone(0), Log: slog.New(slog.NewTextHandler(log, nil)), ObserveNamespace: func(string, string) {},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(req *http.Request) (*http.Response, error) {
				switch q := req.URL.Query(); {
				case strings.HasSuffix(req.URL.Path, "/pods"):
				case q.Has("watch") && !q.Has("sendInitialEvents"):
					following.Add(1)
				case q.Get("limit") != "1" && !strings.Contains(q.Get("fieldSelector"), "metadata.name="):
					lists.Add(1)
				}
				return next.RoundTrip(req)
			})
		},
	})
	check.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.Run(ctx); close(ended) }()
	poll.Until(t, "the view to be as the cluster", func() bool {
		s := v.Stats()
		return lists.Load()+following.Load() >= 3 && s.Synced && s.Pods > 0 && s.Slices > 0 && s.Namespaces > 0 && done(s)
	})
	w = watched{lists: uint64(lists.Load()), stats: v.Stats(), received: tap.Read().Received}
	cancel()
	<-ended
	w.log = log.String()
	return w
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
