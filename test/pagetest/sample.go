// Package pagetest tests the HTML page of an agent in a browser. It has a [Sample] to show, and a client
// for the DevTools protocol of a headless Chromium ([Start]), which talks over two pipes and needs no
// network.
package pagetest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/internal/report"
)

// Sample is a [page.Source] with an hour of made-up data: in its last twelve minutes one Deployment asks
// for names that only its search path makes. The data are the same at each start.
type Sample struct {
	Now time.Time
}

// header begins each reply.
var header = report.Header{SchemaVersion: report.SchemaVersion, Node: "worker-3", Instance: "5f0c6d1e9a2b7c34"}

// Status implements [page.Source].
func (s Sample) Status() *report.Status {
	return &report.Status{
		Header: header, Version: "0.2.0", Started: s.Now.Add(-75 * time.Hour), ServingSince: s.Now.Add(-75 * time.Hour),
		Ready: true, Healthy: true, Problems: []report.Problem{},
		Config:     report.Config{Path: "/etc/coredns/Corefile.base", Hash: "9d1c", Loaded: s.Now.Add(-26 * time.Hour)},
		Handover:   report.Handover{Last: &report.HandoverEvent{Time: s.Now.Add(-75 * time.Hour), Event: "took over"}},
		View:       &report.View{Synced: true, Objects: map[string]int{"service": 412, "endpointslice": 431, "endpoint": 1894, "namespace": 37, "pod": 61}, AgeSeconds: 4},
		Rates:      report.Rates{Seconds: 60, QueriesPerSecond: 1284, ServfailShare: 0.0006, P50Seconds: 0.00025, P99Seconds: 0.008, HitRatio: 0.87, KernelShare: 0.52},
		Upstreams:  report.Counts{Total: 3, Suspect: 1},
		FailOpen:   report.FailOpen{Rules: "nftables", Active: true, Servers: 2},
		KernelPath: report.KernelPath{Active: true, Answering: 58, Watched: 3},
		FairShares: report.FairShares{
			Seconds: 47, Limited: []report.LimitedClient{{NameClient: checkoutPod, Limited: limitedQueries, Reasons: map[string]uint64{"client_limit": limitedQueries}}},
			Waiting: []report.WaitingClient{{NameClient: thumbnailsPod, Waiting: 5}, {NameClient: checkoutPod, Waiting: 1}},
			Budgets: []report.UpstreamBudget{{To: "10.40.0.11:53", Budget: *budget}},
		},
		Faults: []report.Fault{
			{Time: s.Now.Add(-26 * time.Hour), Level: "warn", Message: "installing the rules failed; the next check tries again", Fields: "part=netsetup interval=1m0s"},
			{Time: s.Now.Add(-9 * time.Minute), Level: "warn", Message: "an upstream left queries unanswered; others are asked first", Fields: "part=upstream to=10.40.0.12:53"},
		},
	}
}

// The pods of the sample that are limited or have waiting queries, the number of limited queries, and the budget of an
// upstream.
var (
	checkoutPod   = report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "checkout", Pod: "checkout-0d3e9ad8-2v44j"}
	thumbnailsPod = report.NameClient{Kind: "pod", Namespace: "media", WorkloadKind: "Deployment", Workload: "thumbnails", Pod: "thumbnails-108618e2-7xk2p"}
	budget        = &report.Budget{LimitPerSecond: 900, UsedShare: 0.13, Waited: 12, GivenUp: 31, Clients: []report.WaitingClient{}}
)

const limitedQueries = 412

// Upstreams implements [page.Source].
func (s Sample) Upstreams() *report.Upstreams {
	server := func(to string, perSecond, rtt float64, suspect bool, servfail uint64) report.Upstream {
		return report.Upstream{
			To: to, Suspect: suspect, RTTSeconds: rtt, Exchanges: map[string]uint64{"NOERROR": uint64(perSecond * 81000), "NXDOMAIN": uint64(perSecond * 9000), "SERVFAIL": servfail},
			Recent: report.Exchanges{Seconds: 60, PerSecond: perSecond, ServfailShare: float64(servfail) / (perSecond * 90000), P50Seconds: 4 * rtt / 3, P99Seconds: 8 * rtt},
		}
	}
	first := server("10.40.0.11:53", 118.4, 0.0021, false, 410)
	first.Budget = budget
	return &report.Upstreams{Header: header, Forwards: []report.Forward{
		{Zones: []string{"cluster.local.", "."}, From: "cluster.local.", Upstreams: []report.Upstream{server("10.96.113.7:53", 1.3, 0.0006, false, 2)}},
		{Zones: []string{"."}, From: ".", Upstreams: []report.Upstream{first, server("10.40.0.12:53", 9.7, 0.0384, true, 2280)}},
	}}
}

// workload is one Deployment of the sample. Shares are of its queries.
type workload struct {
	namespace, name                     string
	pods                                int
	rate                                float64 // of all its pods
	hit, kernel, nxdomain, waste, fails float64
	p99                                 float64
}

var workloads = []workload{
	{"shop", "checkout", 3, 611, 0.98, 0.31, 0.83, 0.82, 0, 0.004},
	{"shop", "frontend", 6, 228, 0.95, 0.78, 0.04, 0.02, 0, 0.016},
	{"payments", "ledger", 4, 143, 0.91, 0.66, 0.02, 0, 0, 0.031},
	{"search", "indexer", 2, 96, 0.58, 0.2, 0.11, 0.05, 0.004, 0.25},
	{"platform", "gateway", 3, 71, 0.93, 0.81, 0.01, 0, 0, 0.008},
	{"media", "thumbnails", 8, 52, 0.44, 0.1, 0.07, 0.01, 0.012, 0.5},
	{"monitoring", "scraper", 1, 33, 0.99, 0.9, 0, 0, 0, 0.001},
	{"payments", "fraud", 2, 21, 0.76, 0.4, 0.3, 0.28, 0, 0.062},
}

// Clients implements [page.Source].
func (s Sample) Clients(by, window string, limit int) (*report.Clients, error) {
	c := &report.Clients{Header: header, By: by, Window: window, WindowSeconds: 47, SinceSeconds: 270000, Addresses: 74, AddressLimit: 512}
	random := rand.New(rand.NewPCG(1, 2))
	add := func(w workload, pod string, rate float64) {
		n := func(share float64) uint64 { return uint64(math.Round(rate * c.WindowSeconds * share)) }
		counts := report.ClientCounts{
			Queries: n(1), NXDomain: n(w.nxdomain), Servfail: n(w.fails), NoError: n(1 - w.nxdomain - w.fails),
			Hits: n(w.hit), Kernel: n(w.kernel), Upstream: n(1 - w.hit), Waste: n(w.waste), Slow: n((1 - w.hit) * 0.01),
		}
		if w.name == "checkout" {
			counts.Limited = limitedQueries
		}
		row := report.Client{
			Kind: "pod", Namespace: w.namespace, WorkloadKind: "Deployment", Workload: w.name, Pod: pod, Addresses: []string{},
			QueriesPerSecond: rate, P50Seconds: 0.000256, P99Seconds: w.p99, Window: counts, Total: counts,
		}
		switch by {
		case "workload":
			row.Pod = ""
		case "namespace":
			row.Pod, row.Workload, row.WorkloadKind = "", "", ""
		}
		c.Clients, c.Total.Queries = append(c.Clients, row), c.Total.Queries+counts.Queries
	}
	for _, w := range workloads {
		if by != "pod" {
			add(w, "", w.rate)
			continue
		}
		for i := range w.pods {
			add(w, fmt.Sprintf("%s-%08x-%s", w.name, len(w.name)*0x1a7d35b, podSuffix(random)), w.rate/float64(w.pods)*(1.1-0.2*float64(i)/float64(w.pods)))
		}
	}
	c.Clients = append(c.Clients, report.Client{Kind: "host", Addresses: []string{}, QueriesPerSecond: 28, P50Seconds: 0.000256, P99Seconds: 0.002, Window: report.ClientCounts{Queries: 1316, NoError: 1300, NXDomain: 16, Hits: 1270, Upstream: 46}})
	c.Total.Queries += 1316
	for i := range c.Clients {
		c.Clients[i].Share = float64(c.Clients[i].Window.Queries) / float64(c.Total.Queries)
	}
	slices.SortStableFunc(c.Clients, func(a, b report.Client) int { return cmp.Compare(b.Window.Queries, a.Window.Queries) })
	c.More = max(0, len(c.Clients)-limit)
	c.Clients = c.Clients[:len(c.Clients)-c.More]
	return c, nil
}

// podSuffix returns five characters as Kubernetes appends them to the names of pods.
func podSuffix(random *rand.Rand) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var text [5]byte
	for i := range text {
		text[i] = letters[random.IntN(len(letters))]
	}
	return string(text[:])
}

// Names implements [page.Source].
func (s Sample) Names(topic, window string, limit int) (*report.Names, error) {
	n := &report.Names{Header: header, Topic: topic, Window: window, WindowSeconds: 47, Names: []report.Name{}}
	if topic == "queries" || topic == "client" {
		n.KernelSample = 64
	}
	for _, row := range names[topic] {
		n.Queries += uint64(row.rate * n.WindowSeconds)
	}
	for _, row := range names[topic] {
		out := report.Name{Name: row.name, Cause: row.cause, Queries: uint64(row.rate * n.WindowSeconds), QueriesPerSecond: row.rate}
		out.Share = float64(out.Queries) / float64(n.Queries)
		if pod, ok := strings.CutPrefix(row.client, "shop/"); ok {
			out.Client = &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "checkout", Pod: pod}
		}
		n.Names = append(n.Names, out)
	}
	n.More = max(0, len(n.Names)-limit)
	n.Names = n.Names[:len(n.Names)-n.More]
	return n, nil
}

// name is a row of a table of names.
type name struct {
	name, client, cause string
	rate                float64
}

var names = map[string][]name{
	"queries": {
		{name: "orders.shop.svc.cluster.local.", rate: 171}, {name: "rates.exchange.example.shop.svc.cluster.local.", rate: 168},
		{name: "rates.exchange.example.svc.cluster.local.", rate: 167}, {name: "rates.exchange.example.cluster.local.", rate: 166},
		{name: "catalog.shop.svc.cluster.local.", rate: 84}, {name: "ledger-db.payments.svc.cluster.local.", rate: 61}, {name: "rates.exchange.example.", rate: 55},
	},
	"client": {
		{name: "rates.exchange.example.shop.svc.cluster.local.", client: "shop/checkout-0d3e9ad8-2v44j", rate: 61},
		{name: "rates.exchange.example.svc.cluster.local.", client: "shop/checkout-0d3e9ad8-2v44j", rate: 60},
		{name: "rates.exchange.example.cluster.local.", client: "shop/checkout-0d3e9ad8-crqfg", rate: 57},
	},
	"waste": {
		{name: "exchange.example.shop.svc.cluster.local.", rate: 168}, {name: "exchange.example.svc.cluster.local.", rate: 167},
		{name: "exchange.example.cluster.local.", rate: 166}, {name: "fraud-api.example.payments.svc.cluster.local.", rate: 2.1},
	},
	"failing": {{name: "img7.thumbs.example.", cause: "upstream", rate: 0.6}, {name: "shard-12.index.example.", cause: "upstream", rate: 0.4}},
	"slow":    {{name: "img3.thumbs.example.", cause: "upstream", rate: 1.2}, {name: "shard-2.index.example.", cause: "upstream", rate: 0.7}, {name: "img7.thumbs.example.", cause: "upstream", rate: 0.2}},
}

// Explain implements [page.Source].
func (s Sample) Explain(values url.Values) (*report.Explanation, error) {
	if values.Get("type") == "NOTHING" {
		return nil, errors.New("type is NOTHING; give the name of a record type")
	}
	ttl, idle := uint32(5), 0.4
	zone := &report.ExplainedZone{Name: "cluster.local.", Line: 1}
	step := func(step, outcome, reason, name string) report.ExplainedStep {
		return report.ExplainedStep{Name: name, Type: "A", Step: step, Outcome: outcome, Reason: reason}
	}
	e := &report.Explanation{
		Header: header, Ndots: 5, Search: []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."},
		Listener: report.ExplainedListener{Address: "169.254.20.10:53", Transport: "dns", Protocol: "udp"},
		Client: report.ExplainedClient{
			Address: "10.244.3.17", Namespace: "shop", Pod: "checkout-0d3e9ad8-2v44j",
			Limited: map[string]uint64{"client_limit": limitedQueries}, LimitedSeconds: 47, Kernel: &report.KernelClient{Interface: "veth3a91c07e", Answering: true, Result: "answered"},
		},
	}
	for _, domain := range e.Search {
		full := strings.TrimSuffix(values.Get("name"), ".") + "." + domain
		e.Questions = append(e.Questions, report.ExplainedQuestion{
			Name: full, Type: "A", Zone: zone, Source: "kubernetes", ExplainedReply: report.ExplainedReply{Rcode: "NXDOMAIN", TTLSeconds: &ttl},
			Kernel: &report.ExplainedKernel{Copies: []report.KernelCopy{{Type: "A", Flags: []string{"RD"}, Rcode: "NXDOMAIN", State: "valid", IdleSeconds: &idle}}},
			Steps: []report.ExplainedStep{
				step("zone", "takes", "the longest zone of the name", full), step("kubernetes", "answers", "there is no such Service or namespace", full),
			},
		})
	}
	full := strings.TrimSuffix(values.Get("name"), ".") + "."
	e.Questions = append(e.Questions, report.ExplainedQuestion{
		Name: full, Type: "A", Zone: &report.ExplainedZone{Name: ".", Line: 24}, Source: "forward", Waits: "upstream", Kernel: &report.ExplainedKernel{Copies: []report.KernelCopy{}},
		Steps: []report.ExplainedStep{
			step("zone", "takes", "the longest zone of the name", full), step("cache", "passes", "nothing is cached", full), step("forward", "waits", "an upstream would be asked", full),
		},
		Forward: &report.ExplainedForward{From: ".", Policy: "random", Upstreams: []report.ExplainedUpstream{{To: "10.40.0.11:53", RTTSeconds: 0.0021}, {To: "10.40.0.12:53", RTTSeconds: 0.0384, Suspect: true}}},
	})
	return e, nil
}

// LastSample implements [page.Source].
func (s Sample) LastSample() time.Time { return s.Now }

// History implements [page.Source].
func (s Sample) History() page.History {
	h := page.History{End: s.Now, Upstreams: []string{"10.40.0.11:53", "10.40.0.12:53", "10.96.113.7:53"}}
	random := rand.New(rand.NewPCG(3, 4))
	for i := range page.HistoryLength {
		noise := func(n float64) uint32 { return uint32(n * 10 * (0.94 + 0.12*random.Float64())) }
		wave := 1 + 0.18*math.Sin(float64(i)/38) + 0.05*math.Sin(float64(i)/7)
		sample := page.Sample{Cluster: noise(310 * wave), Cache: noise(265 * wave), Upstream: noise(88 * wave), Others: noise(6)}
		flood := 0.0
		if i >= 288 {
			flood = min(1, float64(i-287)/8)
		}
		sample.Cluster += noise(560 * flood)
		sample.Kernel = uint32((0.68*(310+265)*wave + 190*flood) * 10)
		sample.NXDomain, sample.ServFail = noise(34*wave+500*flood), noise(0.5)
		sample.P50, sample.P99 = 0.00025, 0.008
		if i%23 == 0 || i > 300 && i < 330 {
			sample.P99 = 0.032
			sample.ServFail += noise(6)
		}
		sample.Exchanges = [page.MaxUpstreams + 1]uint32{noise(76 * wave), noise(11 * wave), noise(1.2)}
		if i > 300 && i < 330 {
			sample.Exchanges[0], sample.Exchanges[1] = noise(86*wave), noise(2)
		}
		h.Samples = append(h.Samples, sample)
	}
	return h
}

var _ page.Source = Sample{}
