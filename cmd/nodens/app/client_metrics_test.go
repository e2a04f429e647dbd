// These tests use collect and startAgent, which are not exported.

package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// clientScrape is a collector of the metrics by client.
type clientScrape struct{ of *clients.Table }

func (c clientScrape) Describe(chan<- *prometheus.Desc) {}
func (c clientScrape) Collect(ch chan<- prometheus.Metric) {
	collect(ch, false, func(s *scrape) { s.clients(c.of) })
}

// TestClientMetricsBound: the metrics by client have a bound, whatever names the pods have: as many series of
// pods as there may be, and three without, each with its lines, and a line with as many bytes as names may have.
func TestClientMetricsBound(t *testing.T) {
	const (
		series  = 32 + 64 + 3 // namespaces, workloads, and (host), (unknown) and (other)
		lines   = 4 + 3       // results, waste, upstream and slow
		line    = len("nodens_client_search_waste_total{namespace=\"\",result=\"nxdomain\",workload=\"/\"} 1.8446744073709552e+19\n") + 63 + 63 + 253
		reasons = 16 // at most
		help    = 5 * 2000
		most    = series*(lines+reasons)*line + help
	)
	table := clients.New(clients.Options{})
	kind, name := strings.Repeat("K", 63), strings.Repeat("n", 248)
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		namespace := fmt.Sprintf("%s%03d", strings.Repeat("n", 60), i)
		if i%2 == 0 {
			table.SetLevel(namespace, clients.ByWorkload)
		}
		table.SetPod(addr, clients.Pod{Namespace: namespace, Name: "p", UID: fmt.Sprint(i), Workload: clients.Workload{Kind: kind, Name: fmt.Sprintf("%s%05d", name, i)}})
		table.Count(0, addr, clients.Query{})
		_ = table.Series() // settles what is counted
	}
	r := prometheus.NewRegistry()
	r.MustRegister(clientScrape{table})
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if got := w.Body.Len(); w.Code != http.StatusOK || got > most || got < 64*lines*300 {
		t.Errorf("status %d, %d bytes, want between %d and %d", w.Code, got, 64*lines*300, most)
	}
}

// TestLongOwners: the API server accepts owner references with a megabyte of name. Such an owner counts as none.
func TestLongOwners(t *testing.T) {
	api := fakeapi.Start(t)
	api.Put(shopNamespace("workload"))
	isController := true
	for i := range 4 {
		api.Put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), UID: "u", OwnerReferences: []metav1.OwnerReference{
				{Kind: "Evil", Name: strings.Repeat(fmt.Sprint(i), 1_000_000), Controller: &isController},
			}},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("127.0.0.%d", 1+i)}}},
		})
	}
	p := peer.Ports(t, 2)
	r := startAgent(t, fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n endpoint %s\n }\n prometheus 127.0.0.1:%d\n}\n", p[0], api.URL, p[1]),
		func(o *options.Agent) { o.NodeName = "n1" })
	var text string
	r.Await("the series of the pod", func() bool {
		agenttest.Ask(t, p[0], "web.shop.svc.cluster.local.")
		_, text = agenttest.Get(t, p[1], "/metrics")
		return strings.Contains(text, `workload="Pod/web-0"`)
	})
	if len(text) > 200_000 {
		t.Errorf("/metrics has %d bytes", len(text))
	}
}
