package app

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/connlimit"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

// metrics returns the handler of /metrics. The parts count in plain numbers; a scrape gives
// them names and labels: those that dashboards and alerts for CoreDNS and NodeLocal DNSCache
// query.
func (a *agent) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	var own prometheus.Collector = a
	if a.opts.FormerMetricNames {
		own = withFormerNames{a}
	}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), own)
	return newExposition(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
}

// noView is the view label of zones without a view.
const noView = ""

// Describe sends nothing, because the metrics depend on the Corefile: the agent is an unchecked
// collector.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect reads all counters of the agent.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	s := scrape(ch)
	a.kernelPath.updateCounters() // before the counters are read
	b := a.opts.Build
	s.put(buildInfo, 1, b.Version, b.Commit, b.GoVersion)
	s.put(panics, float64(a.server.Panics()))
	a.server.EachShed(func(reason string, n uint64) { s.put(shedRequests, float64(n), reason) })
	s.histogram(socketWait, a.server.SocketDelay())
	s.put(refusedConns, float64(a.server.ConnsRefused()))
	s.put(evictedConns, float64(a.server.ConnsEvicted()))
	s.put(abortedConns, float64(a.server.ConnsCut()))
	s.http(&a.http.counts)
	s.put(httpListenErrors, float64(a.http.failures.Load()))
	s.put(handshakesFailed, float64(a.server.HandshakesFailed()))
	s.put(reloadFailed, float64(a.reloadFailed.Load()))
	s.put(configRefused, boolFloat(a.reloadState.refused.Load()))
	s.put(configAwaited, boolFloat(a.awaited.shown.Load() != nil))
	s.histogram(healthDuration, a.selfProbe.duration.Read())
	s.put(healthFailures, float64(a.selfProbe.failed.Load()))
	s.put(logDropped, float64(a.logQueue.Stats().Dropped))
	s.put(setupErrors, float64(a.configMapFailed.Load()), "configmap")
	if a.net != nil {
		st := a.net.Stats()
		for kind, n := range st.Errors {
			s.put(setupErrors, float64(n), string(kind))
		}
		s.put(setupRepairs, float64(st.Repairs))
		if st.Backend != "" { // without rules there is nothing to fail open, and nothing to alert of
			s.put(setupFailOpen, boolFloat(st.FailOpen))
			s.put(setupBlocked, float64(len(st.Blocked)))
			s.put(setupFallback, float64(st.Diversion))
		}
	}
	s.kernelPath(a.kernelPath)
	s.clients(a.builder.clients.counted())
	s.handovers(&a.handoverState)
	s.put(cacheBytes, float64(a.builder.store.Bytes()))
	s.put(cacheBudget, float64(a.builder.store.Budget()))
	g := a.current.Load()
	if g == nil {
		return
	}
	s.put(reloadVersion, 1, "sha512", g.cfg.Hash)
	guards := newPolicyCounters()
	for addr, l := range g.listeners {
		rt := l.Routes
		srv := serverLabel(l.Transport, addr.AddrPort)
		var found uint64
		searches := false
		for z := range rt.Zones() {
			s.zone(srv, z.Name.String(), z.View.Name(), z.Stats)
			guards.add(srv, z.View.Name(), z)
			found += z.Stats.ViaSearch()
			searches = searches || z.Autopath != nil
		}
		if searches {
			s.put(autopathSuccess, float64(found), srv)
		}
		s.zone(srv, droppedZone, noView, rt.Dropped())
		s.transport(a.server, addr, l.Transport)
	}
	guards.put(s)
	s.taps(g)
	s.exporters(g)
	s.certificates(g)
	s.parts(g)
	s.directives(a.builder.directives, g)
	s.views(g)
}

// directives puts the metrics that the lines of the table put.
func (s scrape) directives(table []directive, g *generation) {
	for _, d := range table {
		if d.metrics != nil {
			d.metrics(s, g)
		}
	}
}

func (s scrape) handovers(of *handoverState) {
	var given handover.Stats
	var takenBack map[string]uint64
	if host := of.handoverServer.Load(); host != nil {
		given = host.Stats()
		_, takenBack = host.TakenBack()
	}
	const successor, predecessor = "successor", "predecessor"
	s.put(handovers, float64(of.takeovers.Load()), successor, "complete")
	s.put(handovers, float64(of.takeoversFailed.Load()), successor, "failed")
	s.put(handovers, float64(given.Completed), predecessor, "complete")
	s.put(handovers, float64(given.Failed), predecessor, "failed")
	s.put(handovers, float64(given.Resumed), predecessor, "resumed")
	s.put(handovers, float64(given.Returned), predecessor, "returned")
	s.put(handovers, float64(of.returned.Load()), successor, "returned")
	s.put(handoverComparing, boolFloat(of.comparing.Load()))
	s.put(handoverRefused, float64(given.Refused))
	for reason, n := range takenBack {
		s.put(handoverTakenBack, float64(n), reason)
	}
	s.put(cacheRestored, float64(of.restored.Load()))
}

func (s scrape) http(c *httpCounts) {
	for limit, name := range map[connlimit.Limit]string{connlimit.Client: "client", connlimit.Total: "listener"} {
		s.put(httpEvicted, float64(c.evicted[limit].Load()), name)
		s.put(httpRefused, float64(c.refused[limit].Load()), name)
	}
}

func (s scrape) loops(srv string, p *blockParts) {
	for z, l := range p.loops() {
		s.put(loopDetected, boolFloat(l.Stopped()), srv, z.String(), p.block.ViewName())
	}
}

func (s scrape) certificates(g *generation) {
	failed := make(map[string]uint64) // several may be of one file, with other clients
	for _, c := range g.certs {
		if _, ok := failed[c.File()]; !ok {
			s.put(certificateEnd, float64(c.Expiry().Unix()), c.File())
		}
		failed[c.File()] += c.ReloadFailures()
	}
	for file, n := range failed {
		s.put(tlsReloadFailed, float64(n), file)
	}
}

// scrape receives the metrics of one scrape.
type scrape chan<- prometheus.Metric

func (s scrape) put(f metricDesc, v float64, labels ...string) {
	for i, text := range labels { // names in the cluster may be invalid, and an invalid label is a panic
		labels[i] = strings.ToValidUTF8(text, "\uFFFD")
	}
	s <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
}

func (s scrape) histogram(f metricDesc, h stat.Snapshot, labels ...string) {
	s <- prometheus.MustNewConstHistogram(f.desc, h.Count, h.Sum, h.Buckets, labels...)
}

func (s scrape) zone(srv, zone, view string, st *resolver.Stats) {
	st.EachRequest(func(proto, fam, qtype string, n uint64) {
		s.put(requests, float64(n), srv, zone, view, proto, fam, qtype)
	})
	st.EachResponse(func(rcode, plugin string, n uint64) {
		s.put(responses, float64(n), srv, zone, view, rcode, plugin)
	})
	st.EachSize(func(proto string, req, resp stat.Snapshot) {
		s.histogram(requestSize, req, srv, zone, view, proto)
		s.histogram(responseSize, resp, srv, zone, view, proto)
	})
	s.histogram(requestDuration, st.Duration(), srv, zone, view)
	passed, denied := st.PrivateAddresses()
	s.put(doRequests, float64(st.DO()), srv, zone, view)
	for reply, n := range map[string]uint64{"passed": passed, "denied": denied} {
		if n > 0 {
			s.put(privateAddresses, float64(n), srv, zone, view, reply)
		}
	}
}

// parts puts the metrics of the blocks' parts, under the first address of each block.
func (s scrape) parts(g *generation) {
	var entries uint64
	hasHosts, reloaded := false, 0.0
	for _, p := range g.blocks {
		srv := serverLabel(p.block.Transport, p.block.Listen[0])
		zones := make([]string, len(p.block.Zones))
		for i, z := range p.block.Zones {
			zones[i] = z.String()
			for _, name := range p.block.Directives() {
				s.put(pluginEnabled, 1, srv, zones[i], p.block.ViewName(), name)
			}
		}
		if p.cache() != nil {
			s.cache(srv, strings.Join(zones, ","), p.block.ViewName(), p.cache().Stats())
		}
		if p.hosts() != nil {
			hasHosts = true
			entries += uint64(p.hosts().Entries())
			reloaded = max(reloaded, float64(p.hosts().ModTime().UnixNano())/1e9)
		}
		s.loops(srv, p)
	}
	if hasHosts {
		s.put(hostsEntries, float64(entries))
		s.put(hostsReload, reloaded)
	}
	s.upstreams(g)
}

func (s scrape) cache(srv, zones, view string, st cache.Stats) {
	s.put(cacheRequests, float64(st.Requests), srv, zones, view)
	s.put(cacheMisses, float64(st.Misses), srv, zones, view)
	s.put(cacheDrops, float64(st.Drops), srv, zones, view)
	s.put(cachePrefetch, float64(st.Prefetches), srv, zones, view)
	s.put(cacheStale, float64(st.Stale), srv, zones, view)
	s.put(cacheCuts, float64(st.Cuts), srv, zones, view)
	for _, k := range []struct {
		kind                     string
		entries, hits, evictions uint64
	}{
		{"success", st.Entries.Success, st.Hits.Success, st.Evictions.Success},
		{"denial", st.Entries.Denial, st.Hits.Denial, st.Evictions.Denial},
	} {
		s.put(cacheEntries, float64(k.entries), srv, k.kind, zones, view)
		s.put(cacheHits, float64(k.hits), srv, k.kind, zones, view)
		s.put(cacheEvictions, float64(k.evictions), srv, k.kind, zones, view)
	}
}

// boolFloat returns 1 for true and 0 for false.
func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// views puts the sums over all views, which have the same labels.
func (s scrape) views(g *generation) {
	if len(g.views) == 0 {
		return
	}
	sum := viewSum{
		durations: make(map[string]stat.Snapshot), requests: make(map[kubernetes.Requests]uint64),
		objects: make(map[string]int), levels: map[string]float64{"node": 0, "wide": 0, "all": 0}, synced: 1, last: time.Now(),
	}
	for _, v := range g.views {
		sum.add(v.Stats())
	}
	for kind, h := range sum.durations {
		s.histogram(programming, h, kind)
	}
	for r, n := range sum.requests {
		s.put(restRequests, float64(n), r.Code, r.Method, r.Host)
	}
	for kind, n := range sum.objects {
		s.put(viewObjects, float64(n), kind)
	}
	s.put(viewSynced, sum.synced)
	s.put(viewInvalid, float64(sum.faults))
	if !sum.last.IsZero() {
		s.put(viewLastEvent, float64(sum.last.Unix()))
		s.put(viewAge, max(0, time.Since(sum.last).Seconds()))
	}
	s.put(viewSetBacks, float64(sum.setBacks))
	s.put(viewSlowEvents, float64(sum.slow))
	s.put(viewNamespaces, float64(sum.sources))
	for level, is := range sum.levels {
		s.put(viewScope, is, level)
	}
}

// viewSum sums the counters of views.
type viewSum struct {
	durations map[string]stat.Snapshot
	requests  map[kubernetes.Requests]uint64 // Count is 0 in the keys
	objects   map[string]int
	faults    uint64
	setBacks  uint64
	slow      uint64
	sources   int
	levels    map[string]float64 // 1 for those that a view is at
	synced    float64            // 1 if all are
	last      time.Time          // of the view without an event for longest; zero if one has had none
}

func (sum *viewSum) add(st kubernetes.Stats) {
	for kind, h := range st.Programming {
		sum.durations[kind] = sum.durations[kind].Add(h)
	}
	for _, r := range st.Requests {
		n := r.Count
		r.Count = 0
		sum.requests[r] += n
	}
	sum.objects["service"] += st.Services
	sum.objects["endpointslice"] += st.Slices
	sum.objects["endpoint"] += st.Endpoints
	sum.objects["namespace"] += st.Namespaces
	sum.objects["pod"] += st.Pods
	sum.sources += st.Sources
	sum.levels[st.Level] = 1
	sum.faults += st.Faults
	sum.slow += st.SlowEvents
	if !st.Synced {
		sum.synced = 0
	}
	sum.setBacks += st.Gaps.SetBacks
	if st.LastEvent.Before(sum.last) {
		sum.last = st.LastEvent
	}
}

// policyCounters sums the counters of zones with equal labels, for one scrape.
type policyCounters struct {
	localhosts uint64
	local      bool
	dns64      map[string]uint64                // by server
	allowed    map[aclKey]uint64                // zone is ""
	denied     map[metricDesc]map[aclKey]uint64 // by metric
}

// aclKey are the labels of an ACL's counter.
type aclKey struct{ server, zone, view string }

func newPolicyCounters() *policyCounters {
	return &policyCounters{dns64: make(map[string]uint64), allowed: make(map[aclKey]uint64), denied: make(map[metricDesc]map[aclKey]uint64)}
}

func (g *policyCounters) add(srv, view string, z *resolver.Zone) {
	if z.Local != nil {
		g.local = true
		g.localhosts += z.Stats.Localhosts()
	}
	if z.DNS64 != nil {
		g.dns64[srv] += z.Stats.Mapped()
	}
	v := z.Stats.Verdicts()
	if z.ACL != nil {
		g.allowed[aclKey{server: srv, view: view}] += v.Allowed
	}
	for f, of := range map[metricDesc]map[wire.Name]uint64{aclBlocked: v.Blocked, aclFiltered: v.Filtered, aclDropped: v.Dropped} {
		if g.denied[f] == nil {
			g.denied[f] = make(map[aclKey]uint64)
		}
		for zone, n := range of {
			g.denied[f][aclKey{srv, zone.String(), view}] += n
		}
	}
}

func (g *policyCounters) put(s scrape) {
	if g.local {
		s.put(localNames, float64(g.localhosts))
	}
	for srv, n := range g.dns64 {
		s.put(dns64Mapped, float64(n), srv)
	}
	for k, n := range g.allowed {
		s.put(aclAllowed, float64(n), k.server, k.view)
	}
	for f, of := range g.denied {
		for k, n := range of {
			s.put(f, float64(n), k.server, k.zone, k.view)
		}
	}
}

// transport puts the replies at addr by the codes of its transport.
func (s scrape) transport(from *server.Server, addr server.ListenAddr, via config.Transport) {
	srv := serverLabel(via, addr.AddrPort)
	byStatus := func(m metricDesc) func(status int, n uint64) {
		return func(status int, n uint64) { s.put(m, float64(n), srv, strconv.Itoa(status)) }
	}
	switch via {
	case config.DNSOverHTTPS:
		from.EachHTTPStatus(addr, byStatus(httpsResponses))
	case config.DNSOverHTTP3:
		from.EachHTTPStatus(addr, byStatus(https3Responses))
	case config.DNSOverQUIC:
		from.EachDoQCode(addr, func(code int, n uint64) {
			s.put(quicResponses, float64(n), srv, "0x"+strconv.FormatInt(int64(code), 16))
		})
	}
}

// serverLabel returns CoreDNS's value of the server label.
func serverLabel(via config.Transport, addr netip.AddrPort) string {
	if addr.Addr().IsUnspecified() {
		return via.String() + "://:" + strconv.Itoa(int(addr.Port()))
	}
	return via.String() + "://" + addr.String()
}

// exporters puts the counters of the exporters.
func (s scrape) exporters(g *generation) {
	type series struct{ endpoint, reason string }
	sent, dropped := make(map[string]uint64), make(map[series]uint64)
	for _, e := range g.exporters {
		sent[e.Endpoint()] += e.Sent()
		e.EachDropped(func(reason string, n uint64) { dropped[series{e.Endpoint(), reason}] += n })
	}
	for to, n := range sent {
		s.put(traceSpans, float64(n), to)
	}
	for k, n := range dropped {
		s.put(traceDropped, float64(n), k.endpoint, k.reason)
	}
}

// clients puts the metrics by client. of is nil if none are counted.
func (s scrape) clients(of *clients.Table) {
	if of == nil {
		return
	}
	limited := make(map[string][]uint64) // by namespace
	for _, x := range of.Series() {
		if limited[x.Namespace] == nil {
			limited[x.Namespace] = make([]uint64, len(x.Counts.Limited))
		}
		for reason, n := range x.Counts.Limited {
			limited[x.Namespace][reason] += n
		}
		labels := []string{x.Namespace, workloadLabel(x.Workload)}
		for result, n := range map[string]uint64{
			"noerror": x.Counts.NoError, "nxdomain": x.Counts.NXDomain, "servfail": x.Counts.ServFail, "other": x.Counts.Other,
		} {
			s.put(clientQueries, float64(n), append(labels, result)...)
		}
		s.put(clientWaste, float64(x.Counts.Waste), labels...)
		s.put(clientUpstream, float64(x.Counts.Upstream), labels...)
		s.put(clientSlow, float64(x.Counts.Slow), labels...)
	}
	for namespace, counts := range limited {
		for reason, n := range counts {
			s.put(clientLimited, float64(n), namespace, clients.Reason(reason).String())
		}
	}
}

// workloadLabel returns the value of the label workload, "" for none.
func workloadLabel(w clients.Workload) string {
	if w == (clients.Workload{}) {
		return ""
	}
	return w.Kind + "/" + w.Name
}

// taps puts the dropped messages of each collector.
func (s scrape) taps(g *generation) {
	dropped, connected := make(map[string]uint64), make(map[string]int)
	for _, t := range g.taps {
		dropped[t.Endpoint()] += t.Dropped()
		connected[t.Endpoint()] += t.Collectors()
	}
	for to, n := range connected {
		s.put(tapCollectors, float64(n), to)
	}
	for to, n := range dropped {
		s.put(tapDropped, float64(n), to)
	}
}

// kernelPath puts the metrics of the kernel path, all 0 without a program.
func (s scrape) kernelPath(of *kernelPath) {
	var active, failed float64
	var links, watched int
	counters := kernelpath.Counters{Results: map[string]uint64{"answered": 0}}
	if of.available() {
		active, failed = boolFloat(of.active.Load()), float64(of.failed.Load())
		links, watched = of.program.Links()
		counters = of.program.Counters()
	}
	s.put(kernelActive, active)
	s.put(kernelInterfaces, float64(links))
	s.put(kernelWatched, float64(watched))
	s.put(kernelAttachErrors, failed)
	s.put(kernelSamplesDropped, float64(counters.SamplesDropped))
	for result, n := range counters.Results {
		s.put(kernelQueries, float64(n), result)
	}
}
