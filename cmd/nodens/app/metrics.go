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
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/upstream"
)

// metrics is the handler of /metrics. The parts count in plain numbers; they get
// their names and labels here, when somebody asks. The names are those that
// dashboards and alerts for CoreDNS and NodeLocal DNSCache query.
func (a *agent) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), a)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: httpTimeout})
}

// maxScrapes bounds scrapes at once: two Prometheus servers and somebody's curl.
const maxScrapes = 4

// metricDesc is one metric: its name, its help and its labels.
type metricDesc struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metricDesc {
	return metricDesc{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metricDesc {
	return metricDesc{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func proxy(name, help string, labels ...string) metricDesc {
	return metricDesc{prometheus.NewDesc("coredns_proxy_"+name, help, labels, prometheus.Labels{"proxy_name": "forward"}), prometheus.CounterValue}
}

// The table of metrics.
var (
	buildInfo     = gauge("coredns_build_info", "What this binary is.", "version", "revision", "goversion")
	panics        = counter("coredns_panics_total", "Queries that panicked.")
	pluginEnabled = gauge("coredns_plugin_enabled", "Directives of each server block.", "server", "zone", "view", "name")

	requests        = counter("coredns_dns_requests_total", "Queries.", "server", "zone", "view", "proto", "family", "type")
	responses       = counter("coredns_dns_responses_total", "Replies, by what wrote them.", "server", "zone", "view", "rcode", "plugin")
	requestDuration = counter("coredns_dns_request_duration_seconds", "Time from query to reply.", "server", "zone", "view")
	requestSize     = counter("coredns_dns_request_size_bytes", "Size of queries.", "server", "zone", "view", "proto")
	responseSize    = counter("coredns_dns_response_size_bytes", "Size of replies.", "server", "zone", "view", "proto")
	doRequests      = counter("coredns_dns_do_requests_total", "Queries with the DO bit.", "server", "zone", "view")
	socketWait      = counter("nodens_dns_socket_wait_seconds", "Time that queries over UDP wait in the socket before they are read, of samples.")
	shedRequests    = counter("nodens_dns_shed_total", "Queries answered SERVFAIL because too many wait for upstreams, by what is exhausted: the places of all clients (capacity), the client's share of them (client), or either for queries in flight to one upstream (upstream).", "reason")
	refusedConns    = counter("nodens_dns_connections_refused_total", "TCP connections closed because too many were open, all with queries waiting.")
	evictedConns    = counter("nodens_dns_connections_evicted_total", "Idle TCP connections closed to make room for new ones.")
	cutConns        = counter("nodens_dns_connections_cut_total", "TCP connections closed because the client was too slow.")

	httpEvicted = counter("nodens_http_connections_evicted_total", "Connections to health, readiness, metrics and profiles closed to make room for new ones, by the limit.", "limit")
	httpRefused = counter("nodens_http_connections_refused_total", "New connections to health, readiness, metrics and profiles closed because every other one was busy, by the limit.", "limit")

	httpsResponses   = counter("coredns_dns_https_responses_total", "Replies over HTTPS, by their status.", "server", "status")
	handshakesFailed = counter("nodens_tls_handshakes_failed_total", "TLS handshakes that came to nothing.")
	certificateEnd   = gauge("nodens_tls_certificate_expiry_timestamp_seconds", "When the certificate in force ends.", "file")
	tlsReloadFailed  = counter("nodens_tls_reload_failed_total", "Changes of a certificate's files that could not be used.", "file")

	aclAllowed  = counter("coredns_acl_allowed_requests_total", "Queries that the ACL let pass.", "server", "view")
	aclBlocked  = counter("coredns_acl_blocked_requests_total", "Queries that the ACL answered REFUSED.", "server", "zone", "view")
	aclFiltered = counter("coredns_acl_filtered_requests_total", "Queries that the ACL answered without records.", "server", "zone", "view")
	aclDropped  = counter("coredns_acl_dropped_requests_total", "Queries that the ACL left without a reply.", "server", "zone", "view")
	localNames  = counter("coredns_local_localhost_requests_total", "Queries for names below localhost, or that begin so.")
	dns64Mapped = counter("coredns_dns64_requests_translated_total", "AAAA queries answered with IPv4 addresses.", "server")

	autopathSuccess = counter("coredns_autopath_success_total", "Queries answered with what was found further down the client's search path.", "server")

	cacheEntries   = gauge("coredns_cache_entries", "Entries in the cache.", "server", "type", "zones", "view")
	cacheRequests  = counter("coredns_cache_requests_total", "Look-ups in the cache.", "server", "zones", "view")
	cacheHits      = counter("coredns_cache_hits_total", "Look-ups that found an answer.", "server", "type", "zones", "view")
	cacheMisses    = counter("coredns_cache_misses_total", "Look-ups that found none.", "server", "zones", "view")
	cacheEvictions = counter("coredns_cache_evictions_total", "Entries pushed out by others.", "server", "type", "zones", "view")
	cacheDrops     = counter("coredns_cache_drops_total", "Replies not kept because they were to another question.", "server", "zones", "view")
	cachePrefetch  = counter("coredns_cache_prefetch_total", "Entries fetched again before their end.", "server", "zones", "view")
	cacheBytes     = gauge("nodens_cache_bytes", "What the entries of all caches and their tables take.")
	cacheBudget    = gauge("nodens_cache_budget_bytes", "The most they may take.")
	cacheStale     = counter("coredns_cache_served_stale_total", "Expired entries served.", "server", "zones", "view")
	cacheCuts      = counter("nodens_cache_nxdomain_cut_total", "Names denied because one above them does not exist.", "server", "zones", "view")

	proxyDuration   = proxy("request_duration_seconds", "Time of exchanges with upstreams.", "to", "rcode")
	proxyHealth     = proxy("healthcheck_failures_total", "Failed health probes.", "to")
	proxyConnHits   = proxy("conn_cache_hits_total", "Exchanges that found a connection open.", "to", "proto")
	proxyConnMisses = proxy("conn_cache_misses_total", "Exchanges that had to open one.", "to", "proto")
	forwardBroken   = counter("coredns_forward_healthcheck_broken_total", "Times all upstreams were down when one was needed.")
	forwardRejects  = counter("coredns_forward_max_concurrent_rejects_total", "Queries refused because of max_concurrent.")
	loopDetected    = gauge("nodens_loop_detected", "1 while a zone's queries are not forwarded because they come back to the agent.", "server", "zone", "view")

	// What the proxy metrics were called until CoreDNS 1.10. Dashboards and alerts still ask for
	// them; the numbers are the same.
	forwardRequests  = counter("coredns_forward_requests_total", "Exchanges with upstreams.", "to")
	forwardResponses = counter("coredns_forward_responses_total", "Exchanges with upstreams, by rcode.", "to", "rcode")
	forwardDuration  = counter("coredns_forward_request_duration_seconds", "Time of exchanges with upstreams.", "to", "rcode")
	forwardHealth    = counter("coredns_forward_healthcheck_failures_total", "Failed health probes.", "to")

	healthDuration  = counter("coredns_health_request_duration_seconds", "Time of the agent's look at its own health endpoint.")
	healthFailures  = counter("coredns_health_request_failures_total", "Failed looks at the agent's own health endpoint.")
	reloadFailed    = counter("coredns_reload_failed_total", "Reloads of a configuration that was not taken on.")
	configRefused   = gauge("nodens_config_refused", "1 while the files hold a configuration that was not taken on.")
	reloadVersion   = gauge("coredns_reload_version_info", "The configuration in force.", "hash", "value")
	hostsEntries    = gauge("coredns_hosts_entries", "Entries of hosts tables.")
	programming     = counter("coredns_kubernetes_dns_programming_duration_seconds", "Time from a change of endpoints to its answer.", "service_kind")
	restRequests    = counter("coredns_kubernetes_rest_client_requests_total", "Requests to the API server.", "code", "method", "host")
	viewObjects     = gauge("nodens_kubernetes_objects", "Objects in the view of the cluster.", "kind")
	viewSynced      = gauge("nodens_kubernetes_synced", "1 once the view of the cluster has had its first lists.")
	viewFaults      = counter("nodens_kubernetes_faulty_objects_total", "Objects that DNS can't show in full.")
	viewLastEvent   = gauge("nodens_kubernetes_last_event_timestamp_seconds", "When the API server last said anything.")
	viewAge         = gauge("nodens_kubernetes_age_seconds", "How long ago the API server last said anything.")
	viewSources     = gauge("nodens_kubernetes_slice_sources", "Namespaces whose EndpointSlices are followed.")
	viewLevel       = gauge("nodens_kubernetes_slice_level", "1 at how much of the cluster's EndpointSlices is followed: node, wide or all.", "level")
	setupErrors     = counter("coredns_nodecache_setup_errors_total", "Failures to set up the node's network.", "errortype")
	setupRepairs    = counter("nodens_netsetup_repairs_total", "Links, addresses and rules put back by a re-check.")
	setupFailOpen   = gauge("nodens_netsetup_fail_open", "1 while the rules hold only as long as the agent listens.")
	setupDiversion  = gauge("nodens_netsetup_diversion_endpoints", "Servers that queries go to while nobody listens.")
	handovers       = counter("nodens_handovers_total", "Hand-overs between agents, by this one's part in them and by what came of them.", "role", "result")
	restored        = gauge("nodens_handover_restored_answers", "Answers that this agent found in the cache when it started.")
	tapDropped      = counter("nodens_dnstap_dropped_total", "Messages that a dnstap collector did not get.", "endpoint")
	upstreamDown    = gauge("nodens_upstream_down", "1 while an upstream is out of service.", "to")
	upstreamDoubted = gauge("nodens_upstream_doubted", "1 while others are asked before an upstream that lets queries pass.", "to")
	upstreamDoubts  = counter("nodens_upstream_doubts_total", "How often an upstream became doubted.", "to")
	upstreamRTT     = gauge("nodens_upstream_rtt_seconds", "Smoothed time that an upstream takes to reply.", "to")
	upstreamHedges  = counter("nodens_upstream_hedges_total", "Queries that an upstream got because another one, or its own reply, was late.", "to")
	upstreamWins    = counter("nodens_upstream_hedge_wins_total", "Those of nodens_upstream_hedges_total that it answered first.", "to")
	upstreamBroken  = counter("nodens_upstream_broken_connections_total", "Connections to an upstream that could not be made or broke with queries in flight.", "to")
	upstreamStrays  = counter("nodens_upstream_strays_total", "Messages dropped because their ID or question was another.", "to")

	kernelActive     = gauge("nodens_kernel_path_active", "1 while queries may be answered inside of the kernel.")
	kernelQueries    = counter("nodens_kernel_path_queries_total", "Queries to the agent that the program on pods' links has seen, by what became of them.", "result")
	kernelLinks      = gauge("nodens_kernel_path_links", "Interfaces of pods whose queries the program may answer.")
	kernelWatched    = gauge("nodens_kernel_path_links_watched", "Interfaces of pods whose queries the program only sees, because it would bypass other programs or filters there.")
	kernelLinkErrors = counter("nodens_kernel_path_link_errors_total", "Links of pods that did not take the program.")
)

// noView is the view label of what is in no view.
const noView = ""

// Describe says nothing: which metrics there are depends on the Corefile, and a
// collector without descriptions is not held to a list.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect reads all counters of the agent.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	s := scrape(ch)
	a.fastPath.updateCounters() // what is read from here on has it all
	b := a.opts.Build
	s.put(buildInfo, 1, b.Version, b.Commit, b.GoVersion)
	s.put(panics, float64(a.server.Panics()))
	a.server.EachShed(func(reason string, n uint64) { s.put(shedRequests, float64(n), reason) })
	s.histogram(socketWait, a.server.SocketDelay())
	s.put(refusedConns, float64(a.server.ConnsRefused()))
	s.put(evictedConns, float64(a.server.ConnsEvicted()))
	s.put(cutConns, float64(a.server.ConnsCut()))
	s.http(&a.http.counts)
	s.put(handshakesFailed, float64(a.server.HandshakesFailed()))
	s.put(reloadFailed, float64(a.reloadFailed.Load()))
	s.put(configRefused, boolFloat(a.reloadState.refused.Load()))
	s.histogram(healthDuration, a.selfProbe.duration.Read())
	s.put(healthFailures, float64(a.selfProbe.failed.Load()))
	s.put(setupErrors, float64(a.configMapFailed.Load()), "configmap")
	if a.net != nil {
		st := a.net.Stats()
		for kind, n := range st.Errors {
			s.put(setupErrors, float64(n), string(kind))
		}
		s.put(setupRepairs, float64(st.Repairs))
		if st.Backend != "" { // without rules there is nothing to fail open, and nothing to alert of
			s.put(setupFailOpen, boolFloat(st.FailOpen))
			s.put(setupDiversion, float64(st.Diversion))
		}
	}
	s.fastPath(a.fastPath)
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
		srv := serverLabel(l.Transport, addr)
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
		if l.Transport == config.DNSOverHTTPS {
			a.server.EachHTTPStatus(addr, func(status int, n uint64) {
				s.put(httpsResponses, float64(n), srv, strconv.Itoa(status))
			})
		}
	}
	guards.put(s)
	s.taps(g)
	s.certificates(g)
	s.parts(g)
	s.views(g)
}

func (s scrape) handovers(of *handoverState) {
	var given handover.Stats
	if host := of.handoverServer.Load(); host != nil {
		given = host.Stats()
	}
	const successor, predecessor = "successor", "predecessor"
	s.put(handovers, float64(of.takeovers.Load()), successor, "complete")
	s.put(handovers, float64(of.takeoversFailed.Load()), successor, "failed")
	s.put(handovers, float64(given.Completed), predecessor, "complete")
	s.put(handovers, float64(given.Failed), predecessor, "failed")
	s.put(handovers, float64(given.Resumed), predecessor, "resumed")
	s.put(restored, float64(of.restored.Load()))
}

func (s scrape) http(c *httpCounts) {
	for limit, name := range map[connlimit.Limit]string{connlimit.Client: "client", connlimit.Total: "listener"} {
		s.put(httpEvicted, float64(c.evicted[limit].Load()), name)
		s.put(httpRefused, float64(c.refused[limit].Load()), name)
	}
}

func (s scrape) loops(srv string, p *blockParts) {
	for z, l := range p.loops {
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

// serverLabel is CoreDNS's value of the server label.
func serverLabel(via config.Transport, addr netip.AddrPort) string {
	if addr.Addr().IsUnspecified() {
		return via.String() + "://:" + strconv.Itoa(int(addr.Port()))
	}
	return via.String() + "://" + addr.String()
}

// scrape is where the metrics of one scrape go.
type scrape chan<- prometheus.Metric

func (s scrape) put(f metricDesc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
}

func (s scrape) histogram(f metricDesc, h stat.Snapshot, labels ...string) {
	s <- prometheus.MustNewConstHistogram(f.desc, h.Count, h.Sum, h.Buckets, labels...)
}

func (s scrape) zone(srv, zone, view string, st *server.Stats) {
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
	s.put(doRequests, float64(st.DO()), srv, zone, view)
}

// parts puts the metrics of the steps. A cache or a pool that several addresses
// share is counted once, under the first.
func (s scrape) parts(g *generation) {
	var broken, rejects, entries uint64
	hasHosts := false
	servers := make(map[netip.AddrPort]upstream.Server)
	for _, p := range g.blocks {
		srv := serverLabel(p.block.Transport, p.block.Listen[0])
		zones := make([]string, len(p.block.Zones))
		for i, z := range p.block.Zones {
			zones[i] = z.String()
			for _, name := range p.block.Directives() {
				s.put(pluginEnabled, 1, srv, zones[i], p.block.ViewName(), name)
			}
		}
		if p.cache != nil {
			s.cache(srv, strings.Join(zones, ","), p.block.ViewName(), p.cache.Stats())
		}
		if p.hosts != nil {
			hasHosts = true
			entries += uint64(p.hosts.Entries())
		}
		s.loops(srv, p)
		for _, u := range p.pools {
			st := u.Stats()
			broken += st.HealthcheckBroken
			rejects += st.MaxConcurrentRejects
			for _, to := range st.Servers {
				servers[to.To] = merge(servers[to.To], to)
			}
		}
	}
	s.put(forwardBroken, float64(broken))
	s.put(forwardRejects, float64(rejects))
	if hasHosts {
		s.put(hostsEntries, float64(entries))
	}
	for _, to := range servers {
		s.upstream(to)
	}
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

// merge adds up what two pools count of one upstream: the labels can't tell them
// apart.
func merge(a, b upstream.Server) upstream.Server {
	b.Down = a.Down || b.Down
	b.HealthcheckFailures += a.HealthcheckFailures
	b.UnexpectedReplies += a.UnexpectedReplies
	b.Suspected = a.Suspected || b.Suspected
	b.RTT = max(a.RTT, b.RTT)
	b.SuspectedTotal, b.Broken = b.SuspectedTotal+a.SuspectedTotal, b.Broken+a.Broken
	b.Hedges, b.HedgeWins = b.Hedges+a.Hedges, b.HedgeWins+a.HedgeWins
	b.UDP.Hits, b.UDP.Misses = b.UDP.Hits+a.UDP.Hits, b.UDP.Misses+a.UDP.Misses
	b.TCP.Hits, b.TCP.Misses = b.TCP.Hits+a.TCP.Hits, b.TCP.Misses+a.TCP.Misses
	for rcode, h := range a.Durations {
		b.Durations[rcode] = b.Durations[rcode].Plus(h)
	}
	return b
}

func (s scrape) upstream(to upstream.Server) {
	label := to.To.String()
	var exchanges uint64
	for rcode, h := range to.Durations {
		s.histogram(proxyDuration, h, label, rcode.String())
		s.histogram(forwardDuration, h, label, rcode.String())
		s.put(forwardResponses, float64(h.Count), label, rcode.String())
		exchanges += h.Count
	}
	s.put(forwardRequests, float64(exchanges), label)
	s.put(proxyHealth, float64(to.HealthcheckFailures), label)
	s.put(forwardHealth, float64(to.HealthcheckFailures), label)
	s.put(proxyConnHits, float64(to.UDP.Hits), label, "udp")
	s.put(proxyConnHits, float64(to.TCP.Hits), label, "tcp")
	s.put(proxyConnMisses, float64(to.UDP.Misses), label, "udp")
	s.put(proxyConnMisses, float64(to.TCP.Misses), label, "tcp")
	s.put(upstreamStrays, float64(to.UnexpectedReplies), label)
	s.put(upstreamDown, boolFloat(to.Down), label)
	s.put(upstreamDoubted, boolFloat(to.Suspected), label)
	s.put(upstreamDoubts, float64(to.SuspectedTotal), label)
	s.put(upstreamRTT, to.RTT.Seconds(), label)
	s.put(upstreamHedges, float64(to.Hedges), label)
	s.put(upstreamWins, float64(to.HedgeWins), label)
	s.put(upstreamBroken, float64(to.Broken), label)
}

// boolFloat is 1 for true.
func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// views puts the sums over all views, which the labels can't tell apart; there is
// more than one only where server blocks watch different things.
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
	s.put(viewFaults, float64(sum.faults))
	s.put(viewLastEvent, float64(sum.last.Unix()))
	s.put(viewAge, max(0, time.Since(sum.last).Seconds()))
	s.put(viewSources, float64(sum.sources))
	for level, is := range sum.levels {
		s.put(viewLevel, is, level)
	}
}

// viewSum adds up what views count.
type viewSum struct {
	durations map[string]stat.Snapshot
	requests  map[kubernetes.Requests]uint64 // Count is 0 in the keys
	objects   map[string]int
	faults    uint64
	sources   int
	levels    map[string]float64 // 1 for those that a view is at
	synced    float64            // 1 if all are
	last      time.Time
}

func (sum *viewSum) add(st kubernetes.Stats) {
	for kind, h := range st.Programming {
		sum.durations[kind] = sum.durations[kind].Plus(h)
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
	if !st.Synced {
		sum.synced = 0
	}
	if st.LastEvent.Before(sum.last) {
		sum.last = st.LastEvent
	}
}
