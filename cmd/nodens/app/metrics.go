package app

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/connlimit"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/kubernetes"
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

// metricDesc describes a metric: name, help, labels and kind.
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
	return counter("coredns_proxy_"+name, help, append(labels, "proxy_name")...)
}

// The table of metrics.
var (
	buildInfo     = gauge("coredns_build_info", "1, with the version, revision and Go version of the binary as labels.", "version", "revision", "goversion")
	panics        = counter("coredns_panics_total", "Queries that panicked. They are answered SERVFAIL, and the log has the stack.")
	pluginEnabled = gauge("coredns_plugin_enabled", "1 for each directive of each server block.", "server", "zone", "view", "name")

	requests        = counter("coredns_dns_requests_total", "Queries received.", "server", "zone", "view", "proto", "family", "type")
	responses       = counter("coredns_dns_responses_total", "Replies sent, by rcode and by the directive that produced them.", "server", "zone", "view", "rcode", "plugin")
	requestDuration = counter("coredns_dns_request_duration_seconds", "Time from the arrival of a query to its reply.", "server", "zone", "view")
	requestSize     = counter("coredns_dns_request_size_bytes", "Size of queries.", "server", "zone", "view", "proto")
	responseSize    = counter("coredns_dns_response_size_bytes", "Size of replies.", "server", "zone", "view", "proto")
	doRequests      = counter("coredns_dns_do_requests_total", "Queries with the DO bit, which ask for DNSSEC records.", "server", "zone", "view")
	socketWait      = counter("nodens_dns_socket_wait_seconds", "Time that UDP queries wait in the socket before the agent reads them, sampled at most once a millisecond for each reader, and ten times a second while queries come one at a time.")
	shedRequests    = counter("nodens_dns_shed_total", "Queries answered SERVFAIL because too many wait for upstreams or for the cluster view, by reason: the client waits in most places and another query needs one (client), queries that have lost their place do not end in time (capacity), or too many queries are in flight to one upstream (upstream).", "reason")
	refusedConns    = counter("nodens_dns_connections_refused_total", "New TCP and QUIC connections closed because too many were open, of their client or of all clients, and all of them were busy.")
	evictedConns    = counter("nodens_dns_connections_evicted_total", "Idle TCP and QUIC connections closed to make room for new ones.")
	abortedConns    = counter("nodens_dns_connections_aborted_total", "TCP and QUIC connections closed because the client took too long to send a query or to read its replies.")

	httpEvicted = counter("nodens_http_connections_evicted_total", "Idle connections to the health, readiness, metrics and profiling endpoints, and to the page, closed to make room for new ones, by limit: of one client address (client) or of the listener (listener).", "limit")
	httpRefused = counter("nodens_http_connections_refused_total", "New connections to the health, readiness, metrics and profiling endpoints, and to the page, closed because too many were open and all of them were busy, by limit: of one client address (client) or of the listener (listener).", "limit")

	httpsResponses   = counter("coredns_dns_https_responses_total", "Replies over HTTPS, by HTTP status. Only with a server block for https://.", "server", "status")
	https3Responses  = counter("coredns_dns_https3_responses_total", "Replies over HTTP/3, by HTTP status. Only with a server block for https3://.", "server", "status")
	quicResponses    = counter("coredns_dns_quic_responses_total", "Replies over QUIC (0x0), and queries and connections ended with another error code of RFC 9250. Only with a server block for quic://.", "server", "status")
	handshakesFailed = counter("nodens_tls_handshakes_failed_total", "TLS handshakes that failed, were aborted by the client, or took too long.")
	certificateEnd   = gauge("nodens_tls_certificate_expiry_timestamp_seconds", "Expiry of the certificate in use, in seconds since the epoch. Only with the tls directive.", "file")
	tlsReloadFailed  = counter("nodens_tls_reload_failed_total", "Changed certificate files that could not be used. The previous certificate stays in use.", "file")

	aclAllowed  = counter("coredns_acl_allowed_requests_total", "Queries that acl allowed.", "server", "view")
	aclBlocked  = counter("coredns_acl_blocked_requests_total", "Queries that acl answered REFUSED.", "server", "zone", "view")
	aclFiltered = counter("coredns_acl_filtered_requests_total", "Queries that acl answered NOERROR without records.", "server", "zone", "view")
	aclDropped  = counter("coredns_acl_dropped_requests_total", "Queries that acl left without a reply.", "server", "zone", "view")
	localNames  = counter("coredns_local_localhost_requests_total", "Queries that local answered because their name is below localhost, or begins with the label localhost.")
	dns64Mapped = counter("coredns_dns64_requests_translated_total", "AAAA queries answered with addresses synthesized from A records.", "server")

	autopathSuccess = counter("coredns_autopath_success_total", "Queries answered with a name found later in the client's search path. Only with autopath.", "server")

	cacheEntries   = gauge("coredns_cache_entries", "Entries in the cache, by type: success or denial.", "server", "type", "zones", "view")
	cacheRequests  = counter("coredns_cache_requests_total", "Cache lookups.", "server", "zones", "view")
	cacheHits      = counter("coredns_cache_hits_total", "Cache lookups that found an answer, by its type: success or denial.", "server", "type", "zones", "view")
	cacheMisses    = counter("coredns_cache_misses_total", "Cache lookups that found no answer.", "server", "zones", "view")
	cacheEvictions = counter("coredns_cache_evictions_total", "Entries evicted to make room for others, by their type: success or denial.", "server", "type", "zones", "view")
	cacheDrops     = counter("coredns_cache_drops_total", "Replies not cached because their question differed from the query.", "server", "zones", "view")
	cachePrefetch  = counter("coredns_cache_prefetch_total", "Entries refreshed in the background: popular ones before they expire, and expired ones with serve_stale.", "server", "zones", "view")
	cacheBytes     = gauge("nodens_cache_bytes", "Memory used by all caches.")
	cacheBudget    = gauge("nodens_cache_budget_bytes", "Memory that all caches together may use (--cache-size).")
	cacheStale     = counter("coredns_cache_served_stale_total", "Expired answers served because of serve_stale.", "server", "zones", "view")
	cacheCuts      = counter("nodens_cache_nxdomain_cut_total", "Queries answered NXDOMAIN from the cache because a name above theirs does not exist (RFC 8020). They are counted as hits, too.", "server", "zones", "view")

	privateAddresses = counter("nodens_private_addresses_total", "Replies of upstreams with an address of private_address, by what became of the reply: passed or denied.", "server", "zone", "view", "reply")

	proxyDuration   = proxy("request_duration_seconds", "Duration of upstream exchanges, by upstream and rcode.", "to", "rcode")
	proxyHealth     = proxy("healthcheck_failures_total", "Failed health probes, by upstream.", "to")
	proxyConnHits   = proxy("conn_cache_hits_total", "Upstream exchanges over an existing connection.", "to", "proto")
	proxyConnMisses = proxy("conn_cache_misses_total", "Upstream exchanges that opened a connection.", "to", "proto")
	forwardBroken   = counter("coredns_forward_healthcheck_broken_total", "Queries that arrived while all their upstreams were down.")
	forwardRejects  = counter("coredns_forward_max_concurrent_rejects_total", "Queries refused because of max_concurrent.")
	loopDetected    = gauge("nodens_loop_detected", "1 while forwarding for the zone is stopped because its queries come back to the agent.", "server", "zone", "view")

	// The names of the proxy metrics until CoreDNS 1.10, which dashboards and alerts still
	// query. The values are the same.
	forwardRequests  = counter("coredns_forward_requests_total", "Upstream exchanges: the former name of coredns_proxy_request_duration_seconds_count.", "to")
	forwardResponses = counter("coredns_forward_responses_total", "Upstream exchanges, by rcode: the former name of coredns_proxy_request_duration_seconds_count.", "to", "rcode")
	forwardDuration  = counter("coredns_forward_request_duration_seconds", "Duration of upstream exchanges: the former name of coredns_proxy_request_duration_seconds.", "to", "rcode")
	forwardHealth    = counter("coredns_forward_healthcheck_failures_total", "Failed health probes: the former name of coredns_proxy_healthcheck_failures_total.", "to")

	transfers = counter("nodens_transfers_total", "Queries for transfers of a zone, by result: the whole zone was sent (sent), the client had this version (current), it may not transfer the zone or asked over UDP (refused), too many transfers were under way (busy), or the zone was not loaded or the transfer ended early (failed). Only with transfer.", "zone", "result")
	notifies  = counter("nodens_transfer_notifies_total", "NOTIFYs about changes of a zone, by result: accepted, or failed after all attempts. Only with transfer.", "zone", "result")

	logDropped           = counter("nodens_log_lines_dropped_total", "Lines of the log that were dropped because nobody read standard error in time, or because writing failed.")
	healthDuration       = counter("coredns_health_request_duration_seconds", "Duration of the agent's requests to its own health endpoint.")
	healthFailures       = counter("coredns_health_request_failures_total", "Failed requests of the agent to its own health endpoint.")
	reloadFailed         = counter("coredns_reload_failed_total", "Configurations that could not be loaded. A faulty one is counted once, not at each check.")
	configRefused        = gauge("nodens_config_refused", "1 while the configuration in the files is invalid and the agent uses the previous one.")
	configAwaited        = gauge("nodens_config_awaited", "1 while the configuration in the files waits for its view of the cluster and the agent uses the previous one.")
	reloadVersion        = gauge("coredns_reload_version_info", "1, with the hash of the configuration in use as label value.", "hash", "value")
	secondaryTransfers   = counter("nodens_secondary_transfers_total", "Attempts to bring a zone of a primary server up to date, by result: transferred, unchanged or failed. Only with secondary.", "result")
	secondaryNotifies    = counter("nodens_secondary_notifies_total", "NOTIFY messages for zones of a primary server, by result: accepted, or ignored because of their sender. Only with secondary.", "result")
	secondaryZones       = gauge("nodens_secondary_zones", "Zones of primary servers, by state: loaded, or empty if they have not been transferred yet or have expired. Only with secondary.", "state")
	hostsReload          = gauge("coredns_hosts_reload_timestamp_seconds", "Modification time of the hosts file that was read last. Only with hosts.")
	hostsEntries         = gauge("coredns_hosts_entries", "Entries of all hosts tables. Only with hosts.")
	programming          = counter("coredns_kubernetes_dns_programming_duration_seconds", "Time from a change of endpoints until queries are answered with it, by kind of Service.", "service_kind")
	restRequests         = counter("coredns_kubernetes_rest_client_requests_total", "Requests to the API server, by HTTP status, method and host.", "code", "method", "host")
	viewObjects          = gauge("nodens_kubernetes_objects", "Objects in the cluster view, by kind.", "kind")
	viewSynced           = gauge("nodens_kubernetes_synced", "1 once every cluster view has loaded its first lists.")
	viewInvalid          = counter("nodens_kubernetes_invalid_objects_total", "Objects with values that DNS can't represent in full.")
	viewLastEvent        = gauge("nodens_kubernetes_last_event_timestamp_seconds", "Time of the last event from the API server, in seconds since the epoch. Absent before the first one.")
	viewAge              = gauge("nodens_kubernetes_last_event_age_seconds", "Time since the last event from the API server, which sends one about every minute. Absent before the first one.")
	viewSetBacks         = counter("nodens_kubernetes_set_backs_total", "Times that the API server's resourceVersions were set back, as after a restore of etcd from a backup, and all resources were listed again.")
	viewSlowEvents       = counter("nodens_kubernetes_slow_events_total", "Changes of an object that the cluster view took longer than 100 ms for.")
	viewNamespaces       = gauge("nodens_kubernetes_watched_namespaces", "Namespaces whose EndpointSlices are watched.")
	viewScope            = gauge("nodens_kubernetes_endpointslice_scope", "1 for the scope of the EndpointSlice watch: node, wide or all.", "scope")
	httpListenErrors     = counter("nodens_http_listen_errors_total", "Refused attempts to listen for health, ready, metrics or pprof, such as at a port in use.")
	setupErrors          = counter("coredns_nodecache_setup_errors_total", "Failures to set up the node's network or to read the kube-dns ConfigMap, by type.", "errortype")
	setupRepairs         = counter("nodens_netsetup_repairs_total", "Interfaces, addresses and rules that were missing at a check, and were restored.")
	setupFailOpen        = gauge("nodens_netsetup_fail_open", "1 while the rules take effect only as long as the agent listens, so that the node keeps DNS when the agent dies. Absent without rules.")
	setupBlocked         = gauge("nodens_netsetup_blocked_chains", "Chains of other programs that may drop DNS packets whatever the agent does. Absent without rules.")
	setupFallback        = gauge("nodens_netsetup_fallback_endpoints", "Cluster DNS endpoints that receive the queries while the agent is down. Absent without rules.")
	handovers            = counter("nodens_handovers_total", "Handovers between agents, by this agent's role (successor or predecessor) and by result: complete; failed, before the successor committed; resumed, because the successor died after it committed; or returned, because the successor gave the node back.", "role", "result")
	handoverComparing    = gauge("nodens_handover_comparing", "1 while the agent compares itself with its predecessor after a handover.")
	handoverTakenBack    = counter("nodens_handover_taken_back_total", "How often the agent took the node back from a successor, by reason: what was worse (servfail, latency, hits, view, unready), or hang or ended if the successor stopped responding or ended while it compared itself.", "reason")
	handoverRefused      = counter("nodens_handover_refused_total", "Attempts to take over that were refused because the same agent had given the node back before.")
	cacheRestored        = gauge("nodens_cache_restored_entries", "Cache entries that the agent had at its start: handed over or loaded from the saved cache.")
	tapCollectors        = gauge("nodens_dnstap_collectors", "Connected dnstap collectors, by their endpoint or the one that the agent listens on.", "endpoint")
	tapDropped           = counter("nodens_dnstap_dropped_total", "Messages dropped because the dnstap collector was slow or unreachable, by collector.", "endpoint")
	upstreamDown         = gauge("nodens_upstream_down", "1 while the upstream is out of service.", "to")
	upstreamSuspect      = gauge("nodens_upstream_suspected", "1 while the upstream is suspect because it left queries unanswered; other upstreams are asked first.", "to")
	upstreamSuspicions   = counter("nodens_upstream_suspicions_total", "How often the upstream became suspect.", "to")
	upstreamRTT          = gauge("nodens_upstream_rtt_seconds", "Smoothed response time of the upstream.", "to")
	upstreamHedges       = counter("nodens_upstream_hedges_total", "Extra queries sent to the upstream because another reply, or its own, was late.", "to")
	upstreamHedgeWins    = counter("nodens_upstream_hedge_wins_total", "Queries of nodens_upstream_hedges_total that the upstream answered first.", "to")
	upstreamConnFailures = counter("nodens_upstream_connection_failures_total", "Connections to the upstream that could not be opened, or failed with queries in flight.", "to")
	upstreamUnexpected   = counter("nodens_upstream_unexpected_replies_total", "Messages from the upstream dropped because they match no query.", "to")

	kernelActive         = gauge("nodens_kernel_path_active", "1 while programs in the kernel may answer queries; 0 with --kernel-path=off, on nodes that can't, and after a handover.")
	kernelQueries        = counter("nodens_kernel_path_queries_total", "Queries seen by the program on pod interfaces: answered in the kernel, dropped because of --client-limit, or passed to the agent for the reason in result.", "result")
	kernelInterfaces     = gauge("nodens_kernel_path_interfaces", "Pod interfaces on which the program may answer.")
	kernelWatched        = gauge("nodens_kernel_path_interfaces_watched", "Pod interfaces on which the program only observes, because answering would bypass other programs or filters.")
	kernelAttachErrors   = counter("nodens_kernel_path_attach_errors_total", "Failures to attach the program to a pod interface.")
	kernelSamplesDropped = counter("nodens_kernel_path_samples_dropped_total", "Samples of clients and names of answered queries that were dropped because the agent had not read the earlier ones.")
)

// noView is the view label of zones without a view.
const noView = ""

// Describe sends nothing, because the metrics depend on the Corefile: the agent is an unchecked
// collector.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect reads all counters of the agent.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	s := scrape(ch)
	a.fastPath.updateCounters() // before the counters are read
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
	s.fastPath(a.fastPath)
	s.clients(a.builder.clients.counted())
	s.transfers(a.builder.transfers)
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
	s.secondaries(g)
	s.views(g)
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
