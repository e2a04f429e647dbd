package main

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

	"github.com/nodens-dns/nodens/test/bench/wiretap"
	"github.com/nodens-dns/nodens/test/bench/objects"
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

func TestCalm(t *testing.T) {
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

// madeScale is a report of two rounds in which the machine was slow in the second.
func madeScale() *scaleReport {
	r := &scaleReport{
		report: &report{
			plan: plan{rounds: 2, length: time.Second, cluster: true, section: scaleMarker.flag},
			date: time.Unix(0, 0), servers: scaleServers(), samples: map[cell][]sample{},
		},
		size: defaultServices, shape: objects.Large(defaultServices), fleetShape: clusterSize(defaultServices).fleetShape(), runs: map[string][]clusterRun{},
	}
	for i, s := range r.servers {
		for round := range 2 {
			n := uint64(i+1) * uint64(round+1) * 10
			r.runs[s.name] = append(r.runs[s.name], clusterRun{
				rss: n << 20, peak: n << 21, watches: 3, sync: time.Second, changes: 500, rate: changeRate,
				first: wiretap.Count{Received: n << 20, Sent: n << 10}, changed: wiretap.Count{Received: n << 20},
				delays: []time.Duration{time.Millisecond, time.Duration(n) * time.Millisecond}, whole: []time.Duration{time.Second}, unseen: round,
			})
		}
	}
	for i, k := range agentKinds() {
		r.fleets = append(r.fleets, fleet{kind: k.name, agents: 100, watches: 3, firstKiB: 1024, changeKiB: 512,
			cpu: spread{float64(i), -1, 10}, memory: spreadOf([]float64{0.5})})
	}
	r.workloads = scaleWorkloads(r.shape)
	for _, w := range r.workloads {
		for _, s := range r.servers {
			for _, micros := range []int{2, 4} {
				if w.cluster {
					micros *= 2
				}
				r.samples[cell{s.name, w.name}] = append(r.samples[cell{s.name, w.name}],
					sample{cpu: time.Duration(micros) * time.Millisecond, loadResult: loadResult{sent: 1000, completed: 1000, elapsed: time.Second}})
			}
		}
	}
	return r
}

// TestPromises holds that every line finds its values, compares within a round, and
// tells a limit that is kept from one that is not.
func TestPromises(t *testing.T) {
	r := madeScale()
	got := map[string]targetResult{}
	for _, p := range r.Targets() {
		res := p.judge()
		if !res.measured {
			t.Errorf("%s: not measured", p.what)
		}
		got[p.what] = res
	}
	for what, want := range map[string]struct {
		median float64
		met    bool
	}{
		"memory after sync, scope node":                                     {15, true},
		"memory after sync, scope node, CoreDNS's = 1":                      {1. / 3, false},
		"memory after sync, scope cluster":                                  {30, true},
		"most memory during the first list, after it = 1":                   {2, false},
		"bytes received for the first sync, scope node, CoreDNS's = 1":      {1. / 3, true},
		"bytes received for 1,000 slice changes, scope node, CoreDNS's = 1": {1. / 3, false},
		"p99 from a change to the answer, 200 changes a second":             {30, true},
		"CPU per " + serviceA + ", that per cached A = 1":                   {2, false},
		"CPU per " + headlessTen + ", that per cached A of 10 = 1":          {2, false},
		"CPU per cluster NXDOMAIN, uncached, that per cached NXDOMAIN = 1":  {2, false},
	} {
		res, ok := got[what]
		if !ok || math.Abs(res.spread.median-want.median) > 1e-9 || res.met() != want.met {
			t.Errorf("%s: there %v, median %v, met %v, want %+v", what, ok, res.spread.median, res.met(), want)
		}
	}
	r.runs = map[string][]clusterRun{}
	for _, p := range r.Targets() {
		if res := p.judge(); res.measured && !strings.HasPrefix(p.what, "CPU") {
			t.Errorf("%s: measured without a stay", p.what)
		}
	}
}

func TestStayTable(t *testing.T) {
	const want = `
| server                | p50 ms | p99 ms | p99 ms with the write | changes a second | not seen |
| --------------------- | -----: | -----: | --------------------: | ---------------: | -------: |
| nodens, scope node    |    1.0 |   15.0 |                1000.0 |              200 |        1 |
| nodens, scope cluster |    1.0 |   30.0 |                1000.0 |              200 |        1 |
| CoreDNS               |    1.0 |   45.0 |                1000.0 |              200 |        1 |
`
	if d := cmp.Diff(want, "\n"+madeScale().runTable(delayColumns)); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestPerAgent(t *testing.T) {
	want := spread{median: 2, least: 1, most: 3}
	if d := cmp.Diff(want, perAgent([]float64{1300, 1100}, 1000, 100), cmp.AllowUnexported(spread{})); d != "" {
		t.Errorf("cost of an agent (-want +got):\n%s", d)
	}
}

// TestBill works a crowd's costs out by hand.
func TestBill(t *testing.T) {
	c := fleet{watches: 23, firstKiB: 512, changeKiB: 102.4, cpu: spread{median: 2}, memory: spread{median: 1.024}}
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

// TestScaleWorkloads holds that every question is about what there is, and that there
// are enough of them.
func TestScaleWorkloads(t *testing.T) {
	s := objects.Large(defaultServices)
	hosts := map[string]objects.Service{}
	for _, svc := range s.Services() {
		hosts[svc.Host()] = svc
	}
	counts := map[string]int{}
	for _, w := range scaleWorkloads(s) {
		counts[w.querySet.name] = w.count()
		for i := range w.count() {
			name := w.question(i)
			svc, there := hosts[name]
			if there != (w.cluster && w.rcode == dns.RcodeSuccess) {
				t.Errorf("%s: %s is there: %v", w.name, name, there)
			}
			if there && svc.Headless && !slices.Contains(s.Uses(0), svc.Namespace) {
				t.Errorf("%s: the node does not use the namespace of %s", w.name, name)
			}
		}
	}
	want := map[string]int{"cached A": 1000, "cached NXDOMAIN": 1000, cachedTen: 1000, serviceA: 1000, headlessTen: 20, headlessFifty: 80, clusterGone: 1000}
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("questions (-want +got):\n%s", d)
	}
}

// TestScaleConf holds that nothing is left to fill in, and that CoreDNS gets no
// option that it does not know.
func TestScaleConf(t *testing.T) {
	for _, s := range scaleServers() {
		text := settings{port: 1, metrics: 2, ready: 3, kubeconfig: "k", scope: s.scope}.fill(configText(s.conf))
		text = strings.ReplaceAll(text, "invalid AddrPort", "") // no upstream here
		if strings.Contains(text, "@") || strings.Contains(text, "scope") != (s.program == "nodens") {
			t.Errorf("%s runs with\n%s", s.name, text)
		}
	}
}

// TestScaleCharts holds that every drawing has a row for each server or kind.
func TestScaleCharts(t *testing.T) {
	r := madeScale()
	charts := r.Charts()
	if len(charts) != 6 {
		t.Errorf("%d drawings, want 6", len(charts))
	}
	for _, c := range charts {
		rows := len(c.rows)
		if c.file == "scale-queries.svg" {
			rows = len(c.series)
		}
		legend := 0
		for _, name := range c.series {
			legend += 34 + 7*len(name) // as in chart.legend
		}
		if legend > wide-left {
			t.Errorf("the legend of %s runs out of it: %q", c.file, c.series)
		}
		for _, row := range c.rows {
			if 7*len(row.label) > left-8 {
				t.Errorf("%s has no room for the label %q", c.file, row.label)
			}
		}
		if rows != 3 || bytes.Count(c.svg(), []byte("<rect")) < 3 {
			t.Errorf("%s has %d rows", c.file, rows)
		}
	}
	r.workloads, r.runs, r.fleets = nil, nil, nil
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
