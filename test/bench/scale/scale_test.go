package scale

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

const scraped = `# HELP apiserver_longrunning_requests Gauge
# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{group="",resource="services",scope="cluster",verb="WATCH",version="v1"} 3
apiserver_longrunning_requests{group="",resource="services",scope="namespace",verb="WATCH",version="v1"} 2
apiserver_longrunning_requests{group="",resource="pods",verb="CONNECT",version="v1"} 7
apiserver_longrunning_requests_sum 99
go_memstats_heap_alloc_bytes 1.23456e+08
odd{label="a b"} 4
broken{} many
`

func TestMetric(t *testing.T) {
	for _, test := range []struct {
		name   string
		metric string
		labels []string
		want   float64
		err    error
	}{
		{"all series", "apiserver_longrunning_requests", nil, 12, nil},
		{"some labels", "apiserver_longrunning_requests", []string{`verb="WATCH"`, `resource="services"`}, 5, nil},
		{"no such label", "apiserver_longrunning_requests", []string{`verb="LIST"`}, 0, nil},
		{"without labels", "go_memstats_heap_alloc_bytes", nil, 1.23456e8, nil},
		{"a space in a label", "odd", nil, 4, nil},
		{"not there", "go_memstats", nil, 0, nil},
		{"no number", "broken", nil, 0, errMetric},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := metric([]byte(scraped), test.metric, test.labels...)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("metric: %v, %v, want %v, %v", got, err, test.want, test.err)
			}
		})
	}
}

func TestSettleRule(t *testing.T) {
	falling := []float64{100, 90, 80, 79.9, 79.8, 79.7, 79.6}
	for _, test := range []struct {
		name  string
		calm  settleRule
		look  func(n int) float64
		want  float64
		after time.Duration
	}{
		{"at rest", settleRule{every: time.Second, samples: 3, limit: time.Hour}, func(int) float64 { return 5 }, 5, 3 * time.Second},
		{"at zero", settleRule{every: time.Second, samples: 3, limit: time.Hour}, func(int) float64 { return 0 }, 0, 3 * time.Second},
		{"at rest later", settleRule{every: time.Second, samples: 3, limit: time.Hour}, func(n int) float64 { return float64(min(n, 4)) }, 4, 7 * time.Second},
		{"within a part", settleRule{every: time.Second, samples: 3, part: 0.01, limit: time.Hour}, func(n int) float64 { return falling[n] }, 79.7, 5 * time.Second},
		{"never", settleRule{every: time.Second, samples: 3, limit: 10 * time.Second}, func(n int) float64 { return float64(n) }, 10, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), -1
				got, err := test.calm.await(t.Context(), func() (float64, error) {
					n++
					return test.look(n), nil
				})
				if d := time.Since(start); got != test.want || d != test.after || err != nil {
					t.Errorf("%v after %v (%v), want %v after %v", got, d, err, test.want, test.after)
				}
			})
		})
	}
	sick := errors.New("sick")
	if _, err := tapSettles.await(t.Context(), func() (float64, error) { return 0, sick }); !errors.Is(err, sick) {
		t.Errorf("a look's error becomes %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tapSettles.await(ctx, func() (float64, error) { return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the context is %v", err)
	}
}

// sampleReport is a report of two rounds in which the machine was slow in the second.
func sampleReport() *Report {
	r := &Report{
		Report: &harness.Report{
			Plan: harness.Plan{Rounds: 2, Length: time.Second, Cluster: true, Section: harness.ScaleFlag},
			Date: time.Unix(0, 0), Servers: scaleServers(), Samples: map[harness.Cell][]harness.Sample{},
		},
		size: DefaultServices, shape: apiobjects.LargeCluster(DefaultServices), fleetShape: clusterSize(DefaultServices).fleetShape(), runs: harness.Results[clusterRun]{},
	}
	for i, s := range r.Servers {
		for round := range 2 {
			n := uint64(i+1) * uint64(round+1) * 10
			r.runs[harness.Cell{Server: s.Name}] = append(r.runs[harness.Cell{Server: s.Name}], clusterRun{
				rss: n << 20, peak: n << 21, watches: 3, sync: time.Second, changes: 500, rate: changeRate,
				first: wiretap.Count{Received: n << 20, Sent: n << 10}, changed: wiretap.Count{Received: n << 20},
				delays: []time.Duration{time.Millisecond, time.Duration(n) * time.Millisecond}, whole: []time.Duration{time.Second}, unseen: round,
			})
		}
	}
	for i, k := range agentKinds() {
		r.fleets = append(r.fleets, fleet{kind: k.name, agents: 100, watches: 3, firstKiB: 1024, changeKiB: 512,
			cpu: figures.Spread{Median: float64(i), Least: -1, Most: 10}, memory: figures.SpreadOf([]float64{0.5})})
	}
	r.Workloads = scaleWorkloads(r.shape)
	for _, w := range r.Workloads {
		for _, s := range r.Servers {
			for _, micros := range []int{2, 4} {
				if w.Cluster {
					micros *= 2
				}
				r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}] = append(r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}],
					harness.Sample{CPU: time.Duration(micros) * time.Millisecond, LoadResult: harness.LoadResult{Sent: 1000, Completed: 1000, Elapsed: time.Second}})
			}
		}
	}
	return r
}

// TestTargets holds that every line finds its values, compares within a round, and
// tells a limit that is kept from one that is not.
func TestTargets(t *testing.T) {
	r := sampleReport()
	got := map[string]harness.TargetResult{}
	for _, p := range r.Targets() {
		res := p.Judge()
		if !res.Measured {
			t.Errorf("%s: not measured", p.What)
		}
		got[p.What] = res
	}
	for what, want := range map[string]struct {
		median float64
		met    bool
	}{
		"memory after sync, scope node":                                           {15, true},
		"memory after sync, scope node, relative to CoreDNS":                      {1. / 3, false},
		"memory after sync, scope cluster":                                        {30, true},
		"most memory during the first list, relative to after it":                 {2, false},
		"bytes received for the first sync, scope node, relative to CoreDNS":      {1. / 3, true},
		"bytes received for 1,000 slice changes, scope node, relative to CoreDNS": {1. / 3, false},
		"p99 from a change to the answer, 200 changes a second":                   {30, true},
		"CPU per " + serviceA + ", relative to cached A":                          {2, false},
		"CPU per " + headlessTen + ", relative to cached A of 10":                 {2, false},
		"CPU per cluster NXDOMAIN, uncached, relative to cached NXDOMAIN":         {2, false},
	} {
		res, ok := got[what]
		if !ok || math.Abs(res.Spread.Median-want.median) > 1e-9 || res.Met() != want.met {
			t.Errorf("%s: there %v, median %v, met %v, want %+v", what, ok, res.Spread.Median, res.Met(), want)
		}
	}
	r.runs = harness.Results[clusterRun]{}
	for _, p := range r.Targets() {
		if res := p.Judge(); res.Measured && !strings.HasPrefix(p.What, "CPU") {
			t.Errorf("%s: measured without a stay", p.What)
		}
	}
}

func TestDelayTable(t *testing.T) {
	const want = `
| server                | p50 ms | p99 ms | p99 ms with the write | changes a second | not seen |
| --------------------- | -----: | -----: | --------------------: | ---------------: | -------: |
| nodens, scope node    |    1.0 |   15.0 |                1000.0 |              200 |        1 |
| nodens, scope cluster |    1.0 |   30.0 |                1000.0 |              200 |        1 |
| CoreDNS               |    1.0 |   45.0 |                1000.0 |              200 |        1 |
`
	if d := cmp.Diff(want, "\n"+sampleReport().delayTable()); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestPerAgent(t *testing.T) {
	want := figures.Spread{Median: 2, Least: 1, Most: 3}
	if d := cmp.Diff(want, perAgent([]float64{1300, 1100}, 1000, 100), cmp.AllowUnexported(figures.Spread{})); d != "" {
		t.Errorf("cost of an agent (-want +got):\n%s", d)
	}
}

// TestFleetCost works a fleet's costs out by hand.
func TestFleetCost(t *testing.T) {
	c := fleet{watches: 23, firstKiB: 512, changeKiB: 102.4, cpu: figures.Spread{Median: 2}, memory: figures.Spread{Median: 1.024}}
	got := c.cost()
	want := fleetCost{
		watches:  115000,
		memory:   5,                     // 5,000 × 1.024 MiB
		first:    5000. * 512 / 1048576, // half a MiB each
		outgoing: 50,                    // 10.24 KiB a second each
		cores:    1,                     // 2 µs × 100 × 5,000
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(fleetCost{}), cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); d != "" {
		t.Errorf("bill (-want +got):\n%s", d)
	}
}

// TestWorkloads holds that every question is about what there is, and that there
// are enough of them.
func TestWorkloads(t *testing.T) {
	s := apiobjects.LargeCluster(DefaultServices)
	hosts := map[string]apiobjects.Service{}
	for _, svc := range s.Services() {
		hosts[svc.Host()] = svc
	}
	counts := map[string]int{}
	for _, w := range scaleWorkloads(s) {
		counts[w.QuerySet.Name] = w.Count()
		for i := range w.Count() {
			name := w.Question(i)
			svc, there := hosts[name]
			if there != (w.Cluster && w.Rcode == dns.RcodeSuccess) {
				t.Errorf("%s: %s is there: %v", w.Name, name, there)
			}
			if there && svc.Headless && !slices.Contains(s.Uses(0), svc.Namespace) {
				t.Errorf("%s: the node does not use the namespace of %s", w.Name, name)
			}
		}
	}
	want := map[string]int{"cached A": 1000, "cached NXDOMAIN": 1000, cachedTen: 1000, serviceA: 1000, headlessTen: 20, headlessFifty: 80, clusterGone: 1000}
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("questions (-want +got):\n%s", d)
	}
}

// TestConfig holds that nothing is left to fill in, and that CoreDNS gets no
// option that it does not know.
func TestConfig(t *testing.T) {
	for _, s := range scaleServers() {
		text := harness.Settings{Port: 1, Metrics: 2, Ready: 3, Kubeconfig: "k", Scope: s.Scope}.Fill(harness.ConfigText(s.Conf))
		text = strings.ReplaceAll(text, "invalid AddrPort", "") // no upstream here
		if strings.Contains(text, "@") || strings.Contains(text, "scope") != (s.Program == "nodens") {
			t.Errorf("%s runs with\n%s", s.Name, text)
		}
	}
}

// TestCharts holds that every drawing has a row for each server or kind.
func TestCharts(t *testing.T) {
	r := sampleReport()
	charts := r.Charts()
	if len(charts) != 6 {
		t.Errorf("%d drawings, want 6", len(charts))
	}
	for _, c := range charts {
		rows := len(c.Rows)
		if c.File == "scale-queries.svg" {
			rows = len(c.Series)
		}
		legend := 0
		for _, name := range c.Series {
			legend += 34 + 7*len(name) // as in chart.legend
		}
		if legend > figures.Wide-figures.LeftMargin {
			t.Errorf("the legend of %s runs out of it: %q", c.File, c.Series)
		}
		for _, row := range c.Rows {
			if 7*len(row.Label) > figures.LeftMargin-8 {
				t.Errorf("%s has no room for the label %q", c.File, row.Label)
			}
		}
		if svg := c.SVG(); rows != 3 || bytes.Count(svg, []byte("<rect"))+bytes.Count(svg, []byte("<circle")) < 3 {
			t.Errorf("%s has %d rows", c.File, rows)
		}
	}
	r.Workloads, r.runs, r.fleets = nil, nil, nil
	if charts := r.Charts(); len(charts) != 0 {
		t.Errorf("%d drawings of nothing", len(charts))
	}
}

// TestOwnConnection holds that no two agents have the same bytes for an authority,
// and that all are the same authority.
func TestOwnConnection(t *testing.T) {
	dir := t.TempDir()
	const certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, []byte(certificate), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kubeconfig")
	c := clientcmdapi.NewConfig()
	c.Clusters["a"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthority: ca}
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range 3 {
		path, err := ownConnection(file, dir, i)
		if err != nil {
			t.Fatal(err)
		}
		own, err := clientcmd.LoadFromFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(own.Clusters["a"].CertificateAuthorityData)
		if seen[text] || !strings.HasSuffix(text, certificate) {
			t.Errorf("agent %d has the authority %q", i, text)
		}
		seen[text] = true
	}
}
