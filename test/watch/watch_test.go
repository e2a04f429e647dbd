package watch

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// lives is how often the objects live and die: with ten changes in a life,
// the slowest hundredth of all is three of them.
const lives = 30

// TestWatch follows one API server through its working, its absence and its
// return.
func TestWatch(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server takes minutes: skipped under -short")
	}
	binary := peer.Build(t, "nodens")
	api := apiserver.Start(t)
	client, err := api.Client()
	check.NoError(t, err)
	t.Run("delay", func(t *testing.T) { testDelay(t, start(t, binary, api, ""), client) })
	t.Run("burst", func(t *testing.T) { testBurst(t, start(t, binary, api, ""), client) })
	t.Run("kernel", func(t *testing.T) { testKernel(t, binary, api, client) })
	t.Run("roles", func(t *testing.T) { testRoles(t, binary, api, client) })
	t.Run("flowschema", func(t *testing.T) { testFlowSchema(t, client) })
	t.Run("restart", func(t *testing.T) { testRestart(t, start(t, binary, api, ""), api, client) })
	t.Run("absent", func(t *testing.T) { testAbsent(t, binary, api) })
}

// testDelay makes one change after the other and measures how long it is
// from the API server's word that it is done until the answer has it.
func testDelay(t *testing.T, a *agent, client kubernetes.Interface) {
	a.process.Must(t, "the agent to be ready", peer.Get(nil, a.ready, http.StatusOK))
	delays := map[string][]time.Duration{}
	for n := range lives {
		for _, c := range life(client, n) {
			if err := c.write(t.Context()); err != nil {
				t.Fatalf("%s: %v", c.kind, err)
			}
			written := time.Now()
			a.awaitChange(t, c)
			delays[c.kind] = append(delays[c.kind], time.Since(written))
			delays["all"] = append(delays["all"], time.Since(written))
		}
	}
	if n := len(delays["all"]); n < 200 {
		t.Errorf("%d changes seen, want at least 200", n)
	}
	t.Logf("from the end of the write to the answer, polled every %v:\n%s", pollPause, table(delays))
}

// pollPause is the time between two polls of a change, and so the delay that
// can be told from none; it leaves a processor to the agent and the server.
const pollPause = time.Millisecond

// awaitChange polls until the change is in the answers.
func (a *agent) awaitChange(t *testing.T, c change) {
	t.Helper()
	ticker := time.NewTicker(pollPause)
	defer ticker.Stop()
	// The limit ends a test whose change never comes; it is no measure.
	limit := time.After(time.Minute)
	probe := a.says(c.name, c.qtype, c.want)
	for {
		err := probe(t.Context())
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-a.process.Done():
			t.Fatalf("%s: the agent ended: %v", c.kind, a.process.Err())
		case <-limit:
			t.Fatalf("%s is never seen: %v", c.kind, err)
		}
	}
}

// table prints the delays by kind of change.
func table(delays map[string][]time.Duration) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "change\tn\tmedian\tp99\tmax")
	for _, kind := range slices.Sorted(maps.Keys(delays)) {
		d := slices.Sorted(slices.Values(delays[kind]))
		at := func(percent int) time.Duration { return d[(len(d)-1)*percent/100].Round(10 * time.Microsecond) }
		fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\n", kind, len(d), at(50), at(99), at(100))
	}
	w.Flush()
	return text.String()
}

// testBurst makes many changes at once and looks for all of them.
func testBurst(t *testing.T, a *agent, client kubernetes.Interface) {
	a.process.Must(t, "the agent to be ready", peer.Get(nil, a.ready, http.StatusOK))
	const many = 200
	services := client.CoreV1().Services(namespace)
	for n := range many {
		s := clusterIP(fmt.Sprintf("burst-%d", n), fmt.Sprintf("10.96.210.%d", n+1))
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range many {
		name := fmt.Sprintf("burst-%d.default.svc.cluster.local.", n)
		a.process.Must(t, name, a.says(name, dns.TypeA, fmt.Sprintf("NOERROR 10.96.210.%d", n+1)))
	}
	for n := range many {
		check.NoError(t, services.Delete(t.Context(), fmt.Sprintf("burst-%d", n), metav1.DeleteOptions{}))
	}
	for n := range many {
		name := fmt.Sprintf("burst-%d.default.svc.cluster.local.", n)
		a.process.Must(t, name+" to go", a.says(name, dns.TypeA, "NXDOMAIN"))
	}
}

// testRestart takes the API server away from a running agent and gives it
// back: the answers stay, and what changes afterwards is seen.
func testRestart(t *testing.T, a *agent, api *apiserver.Server, client kubernetes.Interface) {
	ctx := t.Context()
	stays, goes, head := clusterIP("stays", "10.96.220.1"), clusterIP("goes", "10.96.220.2"), headless("set")
	services := client.CoreV1().Services(namespace)
	create(t, client, stays)
	create(t, client, goes)
	create(t, client, head)
	slice := endpoints(head.Name, "10.244.220.1")
	if _, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	known := []struct {
		name  string
		qtype uint16
		want  string
	}{
		{owner(stays), dns.TypeA, "NOERROR 10.96.220.1"},
		{owner(goes), dns.TypeA, "NOERROR 10.96.220.2"},
		{owner(head), dns.TypeA, "NOERROR 10.244.220.1"},
		{"_http._tcp." + owner(stays), dns.TypeSRV, "NOERROR 0 100 80 " + owner(stays)},
		{"1.220.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR " + owner(stays)},
		{"new.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	}
	for _, k := range known {
		a.process.Must(t, k.name, a.says(k.name, k.qtype, k.want))
	}

	api.Kill()
	for range 100 {
		for _, k := range known {
			if err := a.says(k.name, k.qtype, k.want)(ctx); err != nil {
				t.Fatalf("without an API server: %v", err)
			}
		}
	}
	check.NoError(t, api.Restart(ctx))
	check.NoError(t, services.Delete(ctx, goes.Name, metav1.DeleteOptions{}))
	create(t, client, clusterIP("new", "10.96.220.3"))
	a.process.Must(t, "a service made after the restart", a.says("new.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.220.3"))
	a.process.Must(t, "a service deleted after the restart to go", a.says(owner(goes), dns.TypeA, "NXDOMAIN"))
	for _, k := range []int{0, 2, 3, 4} {
		if err := a.says(known[k].name, known[k].qtype, known[k].want)(ctx); err != nil {
			t.Errorf("after the restart: %v", err)
		}
	}
}

func create(t *testing.T, client kubernetes.Interface, s *corev1.Service) {
	t.Helper()
	if _, err := client.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testAbsent starts agents while there is no API server. Until there is one,
// they don't know the cluster's names: whatever they say, it must not be that
// a name doesn't exist, since clients would believe it. The service "stays"
// is what testRestart has left behind.
func testAbsent(t *testing.T, binary string, api *apiserver.Server) {
	api.Stop()
	const elsewhereIP = "192.0.2.200"
	alone := start(t, binary, api, "")
	cluster := start(t, binary, api, "forward cluster.local "+elsewhere(t, elsewhereIP).String())
	world := start(t, binary, api, "forward . "+elsewhere(t, elsewhereIP).String())
	agents := []struct {
		name   string
		agent  *agent
		before string
	}{
		{"without an upstream", alone, "SERVFAIL"},
		{"with the cluster's own DNS for an upstream", cluster, "NOERROR " + elsewhereIP},
		// It would deny every name of the cluster, and is not asked.
		{"with another upstream", world, "SERVFAIL"},
	}
	const stays, gone = "stays.default.svc.cluster.local.", "gone.default.svc.cluster.local."
	for _, tt := range agents {
		a := tt.agent
		a.process.Must(t, "the agent to listen", peer.Answers(a.server))
		a.process.Must(t, "the agent not to be ready", peer.Get(nil, a.ready, http.StatusServiceUnavailable))
		for _, name := range []string{stays, gone} {
			if err := a.says(name, dns.TypeA, tt.before)(t.Context()); err != nil {
				t.Errorf("%s, before the first sync: %v", tt.name, err)
			}
		}
	}
	check.NoError(t, api.Restart(t.Context()))
	for _, tt := range agents {
		a := tt.agent
		a.process.Must(t, "the service's address, without being denied before", func(context.Context) error {
			got, err := a.answer(stays, dns.TypeA)
			if got == "NXDOMAIN" {
				t.Errorf("%s: a service that exists is denied", tt.name)
			}
			if err == nil && got != "NOERROR 10.96.220.1" {
				err = fmt.Errorf("it is %q", got)
			}
			return err
		})
		a.process.Must(t, "the agent to be ready", peer.Get(nil, a.ready, http.StatusOK))
		a.process.Must(t, "a name that doesn't exist", a.says(gone, dns.TypeA, "NXDOMAIN"))
	}
}
