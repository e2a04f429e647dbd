package app

import "github.com/prometheus/client_golang/prometheus"

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

	sentZones = counter("nodens_transfers_total", "Queries for transfers of a zone, by result: the whole zone was sent (sent), the client had this version (current), it may not transfer the zone or asked over UDP (refused), too many transfers were under way (busy), or the zone was not loaded or the transfer ended early (failed). Only with transfer.", "zone", "result")
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

var (
	traceSpans   = counter("nodens_trace_spans_total", "Spans that the collector of traces has taken, by collector. Only with trace.", "endpoint")
	traceDropped = counter("nodens_trace_spans_dropped_total", "Spans dropped, by collector of traces and by reason: too many waited (queue), the collector did not take them in time (failed), or it refused them (rejected). Only with trace.", "endpoint", "reason")
)

// The metrics by client. Clients are grouped, and the groups are bounded: names of pods would be a
// series for each pod that ever ran.
var (
	clientQueries  = counter("nodens_client_queries_total", "Queries by the client's namespace, and with --client-metrics=workload by its workload, such as Deployment/web, and by result: noerror, nxdomain, servfail or other. The namespace is (host) for the node itself, (unknown) for addresses of no known pod, and (other) beyond 32 namespaces or 64 workloads. The annotation nodens.dev/client-metrics of a Namespace chooses namespace, workload, or off, which counts its pods as (other). A series ends 60 s after the last pod.", "namespace", "workload", "result")
	clientWaste    = counter("nodens_client_search_waste_total", "Queries of nodens_client_queries_total answered NXDOMAIN for names that only a search path makes.", "namespace", "workload")
	clientUpstream = counter("nodens_client_upstream_queries_total", "Queries of nodens_client_queries_total for which an upstream was asked.", "namespace", "workload")
	clientLimited  = counter("nodens_client_limited_total", "Queries that were shed, refused or dropped because of a limit, and connections closed for another client's, by the client's namespace and by the limit: client_limit (over the rate of client_limit or --client-limit), places (no place to wait in, or lost it), in_flight (too many queries in flight to the upstreams), budget (over max_rate), socket (dropped by the socket's reader), connections. Only places, in_flight and budget are also counted in nodens_client_queries_total.", "namespace", "reason")
	clientSlow     = counter("nodens_client_slow_total", "Queries of nodens_client_queries_total answered after 100 ms or later.", "namespace", "workload")
)

// CoreDNS's metrics of the directive grpc.
var (
	grpcRequests  = counter("coredns_grpc_requests_total", "Exchanges with upstreams of the directive grpc.", "to")
	grpcResponses = counter("coredns_grpc_responses_total", "Exchanges with upstreams of the directive grpc, by rcode.", "to", "rcode")
	grpcDuration  = counter("coredns_grpc_request_duration_seconds", "Duration of exchanges with upstreams of the directive grpc.", "to")
)

// The metrics by upstream with max_rate.
var (
	budgetLimit   = gauge("nodens_upstream_budget_limit", "Queries per second that the upstream gets at most (max_rate); 0 while max_rate auto has found no limit.", "to")
	budgetUsed    = gauge("nodens_upstream_budget_used_ratio", "Share of nodens_upstream_budget_limit that was sent in the last second. A burst raises it above 1.", "to")
	budgetWaiting = gauge("nodens_upstream_budget_waiting", "Queries that wait because of max_rate.", "to")
	budgetExpired = counter("nodens_upstream_budget_expired_total", "Queries that failed, or got an expired answer, because they waited for max_rate for the read_timeout.", "to")
	budgetGivenUp = counter("nodens_upstream_budget_given_up_total", "Hedged queries, health probes and refreshes that were not sent because of max_rate.", "to")
)
