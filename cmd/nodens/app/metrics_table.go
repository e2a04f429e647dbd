package app

import (
	"slices"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/upstream"
)

// metricsTable has all metrics, each with the function that reads it; [read] says which forms that may have. They are in the order
// of docs/reference/metrics.md.
var metricsTable = [...]declared{
	{gauge("coredns_build_info", "1, with the version, revision and Go version of the binary as labels.", "version", "revision", "goversion"),
		func(a *agent, s series) { s.put(1, a.opts.Build.Version, a.opts.Build.Commit, a.opts.Build.GoVersion) }},
	{counter("coredns_panics_total", "Queries that panicked. They are answered SERVFAIL, and the log has the stack.").formerly("coredns_panic_count_total"),
		(*server.Server).Panics},
	{gauge("coredns_plugin_enabled", "1 for each directive of each server block.", "server", "zone", "view", "name"),
		func(p *blockParts, s series) {
			for _, z := range p.block.Zones {
				for _, name := range p.block.Directives() {
					s.put(1, z.String(), p.block.ViewName(), name)
				}
			}
		}},

	{counter("coredns_dns_requests_total", "Queries received.", "server", "zone", "view", "proto", "family", "type").formerly("coredns_dns_request_count_total", "coredns_dns_request_type_count_total"),
		(*resolver.Stats).EachRequest},
	{counter("coredns_dns_responses_total", "Replies sent, by rcode and by the directive that produced them.", "server", "zone", "view", "rcode", "plugin").formerly("coredns_dns_response_rcode_count_total"),
		(*resolver.Stats).EachResponse},
	{histogram("coredns_dns_request_duration_seconds", "Time from the arrival of a query to its reply.", "server", "zone", "view"), (*resolver.Stats).Duration},
	{histogram("coredns_dns_request_size_bytes", "Size of queries.", "server", "zone", "view", "proto"), func(x querySize) stat.Snapshot { return x.Snapshot }},
	{histogram("coredns_dns_response_size_bytes", "Size of replies.", "server", "zone", "view", "proto"), func(x replySize) stat.Snapshot { return x.Snapshot }},
	{counter("coredns_dns_do_requests_total", "Queries with the DO bit, which ask for DNSSEC records.", "server", "zone", "view").formerly("coredns_dns_request_do_count_total"),
		(*resolver.Stats).DO},
	{histogram("nodens_dns_socket_wait_seconds", "Time that UDP queries wait in the socket before the agent reads them, sampled at most once a millisecond for each reader, and ten times a second while queries come one at a time."),
		(*server.Server).SocketDelay},
	{counter("nodens_dns_shed_total", "Queries answered SERVFAIL because too many wait for upstreams or for the cluster view, by reason: the client waits in most places and another query needs one (client), queries that have lost their place do not end in time (capacity), or too many queries are in flight to one upstream (upstream).", "reason"),
		(*server.Server).EachShed},
	{counter("nodens_dns_connections_refused_total", "New TCP and QUIC connections closed because too many were open, of their client or of all clients, and all of them were busy."),
		(*server.Server).ConnsRefused},
	{counter("nodens_dns_connections_evicted_total", "Idle TCP and QUIC connections closed to make room for new ones."), (*server.Server).ConnsEvicted},
	{counter("nodens_dns_connections_aborted_total", "TCP and QUIC connections closed because the client took too long to send a query or to read its replies."),
		(*server.Server).ConnsCut},

	{counter("nodens_http_connections_evicted_total", "Idle connections to the health, readiness, metrics and profiling endpoints, and to the page, closed to make room for new ones, by limit: of one client address (client) or of the listener (listener).", "limit"),
		(*endpoint.Servers).Evicted},
	{counter("nodens_http_connections_refused_total", "New connections to the health, readiness, metrics and profiling endpoints, and to the page, closed because too many were open and all of them were busy, by limit: of one client address (client) or of the listener (listener).", "limit"),
		(*endpoint.Servers).Refused},

	{counter("coredns_dns_https_responses_total", "Replies over HTTPS, by HTTP status. Only with a server block for https://.", "server", "status"),
		func(l served, s series) { l.putStatus(config.DNSOverHTTPS, s) }},
	{counter("coredns_dns_https3_responses_total", "Replies over HTTP/3, by HTTP status. Only with a server block for https3://.", "server", "status"),
		func(l served, s series) { l.putStatus(config.DNSOverHTTP3, s) }},
	{counter("coredns_dns_quic_responses_total", "Replies over QUIC (0x0), and queries and connections ended with another error code of RFC 9250. Only with a server block for quic://.", "server", "status"),
		func(l served, s series) {
			if l.Transport == config.DNSOverQUIC {
				l.from.EachDoQCode(l.at, func(code int, n uint64) { s.put(n, "0x"+strconv.FormatInt(int64(code), 16)) })
			}
		}},
	{counter("nodens_tls_handshakes_failed_total", "TLS handshakes that failed, were aborted by the client, or took too long."), (*server.Server).HandshakesFailed},
	{gauge("nodens_tls_certificate_expiry_timestamp_seconds", "Expiry of the certificate in use, in seconds since the epoch. Only with the tls directive.", "file"),
		func(g *generation, s series) {
			ends := make(map[string]time.Time) // several may be of one file, with other clients
			for _, c := range g.certs {
				ends[c.File()] = c.Expiry()
			}
			for file, end := range ends {
				s.set(float64(end.Unix()), file)
			}
		}},
	{counter("nodens_tls_reload_failed_total", "Changed certificate files that could not be used. The previous certificate stays in use.", "file").summed(),
		(*server.Certificate).ReloadFailures},

	{counter("coredns_acl_allowed_requests_total", "Queries that acl allowed.", "server", "view").summed(),
		func(z servedZone, s series) {
			if z.ACL != nil {
				s.put(z.verdicts.Allowed, z.server, z.View.Name())
			}
		}},
	{counter("coredns_acl_blocked_requests_total", "Queries that acl answered REFUSED.", "server", "zone", "view").summed(),
		func(z servedZone, s series) { z.putVerdicts(z.verdicts.Blocked, s) }},
	{counter("coredns_acl_filtered_requests_total", "Queries that acl answered NOERROR without records.", "server", "zone", "view").summed(),
		func(z servedZone, s series) { z.putVerdicts(z.verdicts.Filtered, s) }},
	{counter("coredns_acl_dropped_requests_total", "Queries that acl left without a reply.", "server", "zone", "view").summed(),
		func(z servedZone, s series) { z.putVerdicts(z.verdicts.Dropped, s) }},
	{counter("coredns_local_localhost_requests_total", "Queries that local answered because their name is below localhost, or begins with the label localhost.").summed(),
		func(z servedZone, s series) {
			if z.Local != nil {
				s.put(z.Stats.Localhosts())
			}
		}},
	{counter("coredns_dns64_requests_translated_total", "AAAA queries answered with addresses synthesized from A records.", "server").summed(),
		func(z servedZone, s series) {
			if z.DNS64 != nil {
				s.put(z.Stats.Mapped(), z.server)
			}
		}},

	{counter("coredns_autopath_success_total", "Queries answered with a name found later in the client's search path. Only with autopath.", "server").summed(),
		func(l served, s series) {
			if slices.ContainsFunc(l.zones, func(z *resolver.Zone) bool { return z.Autopath != nil }) {
				for _, z := range l.zones {
					s.put(z.Stats.ViaSearch())
				}
			}
		}},

	{gauge("coredns_cache_entries", "Entries in the cache, by type: success or denial.", "server", "type", "zones", "view").formerly("coredns_cache_size"),
		func(k cacheKind) uint64 { return k.entries }},
	{counter("coredns_cache_requests_total", "Cache lookups.", "server", "zones", "view"), func(st cache.Stats) uint64 { return st.Requests }},
	{counter("coredns_cache_hits_total", "Cache lookups that found an answer, by its type: success or denial.", "server", "type", "zones", "view"),
		func(k cacheKind) uint64 { return k.hits }},
	{counter("coredns_cache_misses_total", "Cache lookups that found no answer.", "server", "zones", "view"), func(st cache.Stats) uint64 { return st.Misses }},
	{counter("coredns_cache_evictions_total", "Entries evicted to make room for others, by their type: success or denial.", "server", "type", "zones", "view"),
		func(k cacheKind) uint64 { return k.evictions }},
	{counter("coredns_cache_drops_total", "Replies not cached because their question differed from the query.", "server", "zones", "view"),
		func(st cache.Stats) uint64 { return st.Drops }},
	{counter("coredns_cache_prefetch_total", "Entries refreshed in the background: popular ones before they expire, and expired ones with serve_stale.", "server", "zones", "view"),
		func(st cache.Stats) uint64 { return st.Prefetches }},
	{gauge("nodens_cache_bytes", "Memory used by all caches."), (*cache.Store).Bytes},
	{gauge("nodens_cache_budget_bytes", "Memory that all caches together may use (--cache-size)."), (*cache.Store).Budget},
	{gauge("nodens_kept_names", "Names of keep, by state: current, or expired if addresses could not be refreshed in time. Only with keep.", "server", "zone", "view", "state"),
		func(p *blockParts, s series) {
			if k := part[*resolver.Keeper](p, "keep"); k != nil {
				all, expired := k.Names()
				s.put(uint64(all-expired), p.block.Zones[0].String(), p.block.ViewName(), "current")
				s.put(uint64(expired), p.block.Zones[0].String(), p.block.ViewName(), "expired")
			}
		}},
	{counter("coredns_cache_served_stale_total", "Expired answers served because of serve_stale.", "server", "zones", "view"),
		func(st cache.Stats) uint64 { return st.Stale }},
	{counter("nodens_cache_nxdomain_cut_total", "Queries answered NXDOMAIN from the cache because a name above theirs does not exist (RFC 8020). They are counted as hits, too.", "server", "zones", "view"),
		func(st cache.Stats) uint64 { return st.Cuts }},

	{counter("nodens_private_addresses_total", "Replies of upstreams with an address of private_address, by what became of the reply: passed or denied.", "server", "zone", "view", "reply"),
		func(st *resolver.Stats, s series) {
			passed, denied := st.PrivateAddresses()
			for reply, n := range map[string]uint64{"passed": passed, "denied": denied} {
				if n > 0 {
					s.put(n, reply)
				}
			}
		}},

	{histogram("coredns_proxy_request_duration_seconds", "Duration of upstream exchanges, by upstream and rcode.", "to", "rcode", "proxy_name"),
		func(x rcodeExchanges) stat.Snapshot { return x.Snapshot }},
	{counter("coredns_proxy_healthcheck_failures_total", "Failed health probes, by upstream.", "to", "proxy_name"),
		func(x exchanges) uint64 { return x.HealthcheckFailures }},
	{counter("coredns_proxy_conn_cache_hits_total", "Upstream exchanges over an existing connection.", "to", "proto", "proxy_name"),
		func(r upstream.Reuse) uint64 { return r.Hits }},
	{counter("coredns_proxy_conn_cache_misses_total", "Upstream exchanges that opened a connection.", "to", "proto", "proxy_name"),
		func(r upstream.Reuse) uint64 { return r.Misses }},
	{counter("coredns_forward_healthcheck_broken_total", "Queries that arrived while all their upstreams were down.").formerly("coredns_forward_healthcheck_broken_count_total").summed(),
		func(st upstream.Stats) uint64 { return st.HealthcheckBroken }},
	{counter("coredns_forward_max_concurrent_rejects_total", "Queries refused because of max_concurrent.").formerly("coredns_forward_max_concurrent_reject_count_total").summed(),
		func(st upstream.Stats) uint64 { return st.MaxConcurrentRejects }},
	{gauge("nodens_loop_detected", "1 while forwarding for the zone is stopped because its queries come back to the agent.", "server", "zone", "view"),
		func(p *blockParts, s series) {
			for z, l := range p.loops() {
				s.put(oneIf(l.Stopped()), z.String(), p.block.ViewName())
			}
		}},

	// The names of the proxy metrics until CoreDNS 1.10, which dashboards and alerts still query. The values are the same.
	{counter("coredns_forward_requests_total", "Upstream exchanges: the former name of coredns_proxy_request_duration_seconds_count.", "to").formerly("coredns_forward_request_count_total"),
		func(x viaForward) uint64 { return x.total.Count }},
	{counter("coredns_forward_responses_total", "Upstream exchanges, by rcode: the former name of coredns_proxy_request_duration_seconds_count.", "to", "rcode").formerly("coredns_forward_response_rcode_count_total"),
		func(x rcodeForward) uint64 { return x.Count }},
	{histogram("coredns_forward_request_duration_seconds", "Duration of upstream exchanges: the former name of coredns_proxy_request_duration_seconds.", "to", "rcode"),
		func(x rcodeForward) stat.Snapshot { return x.Snapshot }},
	{counter("coredns_forward_healthcheck_failures_total", "Failed health probes: the former name of coredns_proxy_healthcheck_failures_total.", "to"),
		func(x viaForward) uint64 { return x.HealthcheckFailures }},

	{counter("nodens_transfers_total", "Queries for transfers of a zone, by result: the whole zone was sent (sent), the client had this version (current), it may not transfer the zone or asked over UDP (refused), too many transfers were under way (busy), or the zone was not loaded or the transfer ended early (failed). Only with transfer.", "zone", "result"),
		zoneTransfers.EachCount},
	{counter("nodens_transfer_notifies_total", "NOTIFYs about changes of a zone, by result: accepted, or failed after all attempts. Only with transfer.", "zone", "result"),
		zoneTransfers.EachNotify},

	{counter("nodens_log_lines_dropped_total", "Lines of the log that were dropped because nobody read standard error in time, or because writing failed."),
		func(a *agent) uint64 { return a.logQueue.Stats().Dropped }},
	{histogram("coredns_health_request_duration_seconds", "Duration of the agent's requests to its own health endpoint."),
		(*endpoint.SelfProbe).Duration},
	{counter("coredns_health_request_failures_total", "Failed requests of the agent to its own health endpoint."), (*endpoint.SelfProbe).Failures},
	{counter("coredns_reload_failed_total", "Configurations that could not be loaded. A faulty one is counted once, not at each check.").formerly("coredns_reload_failed_count_total"),
		func(a *agent) uint64 { return a.reloadFailed.Load() }},
	{gauge("nodens_config_refused", "1 while the configuration in the files is invalid and the agent uses the previous one."),
		func(a *agent) bool { return a.reloadState.refused.Load() }},
	{gauge("nodens_config_awaited", "1 while the configuration in the files waits for its view of the cluster and the agent uses the previous one."),
		func(a *agent) bool { return a.awaited.shown.Load() != nil }},
	{gauge("coredns_reload_version_info", "1, with the hash of the configuration in use as label value.", "hash", "value"),
		func(g *generation, s series) { s.put(1, "sha512", g.cfg.Hash) }},

	{counter("nodens_secondary_transfers_total", "Attempts to bring a zone of a primary server up to date, by result: transferred, unchanged or failed. Only with secondary.", "result"), func(x secondaryZones) byLabel { return x.transfers }},
	{counter("nodens_secondary_notifies_total", "NOTIFY messages for zones of a primary server, by result: accepted, or ignored because of their sender. Only with secondary.", "result"), func(x secondaryZones) byLabel { return x.notifies }},
	{gauge("nodens_secondary_zones", "Zones of primary servers, by state: loaded, or empty if they have not been transferred yet or have expired. Only with secondary.", "state"), func(x secondaryZones) byLabel { return x.zones }},
	{gauge("coredns_hosts_reload_timestamp_seconds", "Modification time of the hosts file that was read last. Only with hosts."),
		func(list []*hosts.Table) float64 {
			last := slices.MaxFunc(list, func(a, b *hosts.Table) int { return a.ModTime().Compare(b.ModTime()) })
			return max(0, float64(last.ModTime().UnixNano())/1e9)
		}},
	{gauge("coredns_hosts_entries", "Entries of the hosts tables by file, with the lines in the Corefile. Only with hosts.", "hostsfile").summed().formerly("coredns_hosts_entries_count"),
		func(t *hosts.Table, s series) { s.put(uint64(t.Entries()), t.File()) }},

	{histogram("coredns_kubernetes_dns_programming_duration_seconds", "Time from a change of endpoints until queries are answered with it, by kind of Service.", "service_kind").summed(),
		func(st kubernetes.Stats, s series) {
			for kind, h := range st.Programming {
				s.histogram(h, kind)
			}
		}},
	{counter("coredns_kubernetes_rest_client_requests_total", "Requests to the API server, by HTTP status, method and host.", "code", "method", "host").summed(),
		func(st kubernetes.Stats, s series) {
			for _, r := range st.Requests {
				s.put(r.Count, r.Code, r.Method, r.Host)
			}
		}},
	{gauge("nodens_kubernetes_objects", "Objects in the cluster view, by kind.", "kind").summed(),
		func(st kubernetes.Stats) byLabel { return objectsByKind(&st) }},
	{gauge("nodens_kubernetes_synced", "1 once every cluster view has loaded its first lists."), func(v viewStates) bool { return v.synced }},
	{counter("nodens_kubernetes_invalid_objects_total", "Objects with values that DNS can't represent in full.").summed(), func(st kubernetes.Stats) uint64 { return st.Faults }},
	{gauge("nodens_kubernetes_last_event_timestamp_seconds", "Time of the last event from the API server, in seconds since the epoch. Absent before the first one."),
		func(t lastEvent) float64 { return float64(time.Time(t).Unix()) }},
	{gauge("nodens_kubernetes_last_event_age_seconds", "Time since the last event from the API server, which sends one about every minute. Absent before the first one."),
		func(t lastEvent) float64 { return max(0, time.Since(time.Time(t)).Seconds()) }},
	{counter("nodens_kubernetes_set_backs_total", "Times that the API server's resourceVersions were set back, as after a restore of etcd from a backup, and all resources were listed again.").summed(),
		func(st kubernetes.Stats) uint64 { return st.Gaps.SetBacks }},
	{counter("nodens_kubernetes_slow_events_total", "Changes of an object that the cluster view took longer than 100 ms for.").summed(),
		func(st kubernetes.Stats) uint64 { return st.SlowEvents }},
	{gauge("nodens_kubernetes_watched_namespaces", "Namespaces whose EndpointSlices are watched.").summed(), func(st kubernetes.Stats) int { return st.Sources }},
	{gauge("nodens_kubernetes_endpointslice_scope", "1 for the scope of the EndpointSlice watch: node, wide or all.", "scope"),
		func(v viewStates) byLabel { return v.levels }},
	{counter("nodens_http_listen_errors_total", "Refused attempts to listen for health, ready, metrics or pprof, such as at a port in use."),
		(*endpoint.Servers).Failures},

	{counter("coredns_nodecache_setup_errors_total", "Failures to set up the node's network or to read the kube-dns ConfigMap, by type.", "errortype"),
		func(a *agent, s series) {
			s.put(a.configMapFailed.Load(), "configmap")
			if a.net != nil {
				for kind, n := range a.net.Stats().Errors {
					s.put(n, string(kind))
				}
			}
		}},
	{counter("nodens_netsetup_repairs_total", "Interfaces, addresses and rules that were missing at a check, and were restored."),
		func(st netsetup.Stats) uint64 { return st.Repairs }},
	{gauge("nodens_netsetup_fail_open", "1 while the rules take effect only as long as the agent listens, so that the node keeps DNS when the agent dies. Absent without rules."),
		func(st nodeRules) bool { return st.FailOpen }},
	{gauge("nodens_netsetup_blocked_chains", "Chains of other programs that may drop DNS packets whatever the agent does. Absent without rules."),
		func(st nodeRules) int { return len(st.Blocked) }},
	{gauge("nodens_netsetup_fallback_endpoints", "Cluster DNS endpoints that receive the queries while the agent is down. Absent without rules."),
		func(st nodeRules) int { return st.Diversion }},

	{counter("nodens_handovers_total", "Handovers between agents, by this agent's role (successor or predecessor) and by result: complete; failed, before the successor committed; resumed, because the successor died after it committed; or returned, because the successor gave the node back.", "role", "result"),
		func(of *handoverState, s series) {
			const successor, predecessor = "successor", "predecessor"
			given := of.given()
			s.put(of.takeovers.Load(), successor, "complete")
			s.put(of.takeoversFailed.Load(), successor, "failed")
			s.put(given.Completed, predecessor, "complete")
			s.put(given.Failed, predecessor, "failed")
			s.put(given.Resumed, predecessor, "resumed")
			s.put(given.Returned, predecessor, "returned")
			s.put(of.returned.Load(), successor, "returned")
		}},
	{gauge("nodens_handover_comparing", "1 while the agent compares itself with its predecessor after a handover."),
		func(of *handoverState) bool { return of.comparing.Load() }},
	{counter("nodens_handover_taken_back_total", "How often the agent took the node back from a successor, by reason: what was worse (servfail, latency, hits, view, unready), or hang or ended if the successor stopped responding or ended while it compared itself.", "reason"),
		func(of *handoverState) (kinds byLabel) {
			if host := of.handoverServer.Load(); host != nil {
				_, kinds = host.TakenBack()
			}
			return kinds
		}},
	{counter("nodens_handover_refused_total", "Attempts to take over that were refused because the same agent had given the node back before."),
		func(of *handoverState) uint64 { return of.given().Refused }},
	{gauge("nodens_cache_restored_entries", "Cache entries that the agent had at its start: handed over or loaded from the saved cache."),
		func(of *handoverState) uint64 { return of.restored.Load() }},

	{gauge("nodens_dnstap_collectors", "Connected dnstap collectors, by their endpoint or the one that the agent listens on.", "endpoint").summed(), (*dnstap.Tap).Collectors},
	{counter("nodens_dnstap_dropped_total", "Messages dropped because the dnstap collector was slow or unreachable, by collector.", "endpoint").summed(), (*dnstap.Tap).Dropped},
	{gauge("nodens_upstream_down", "1 while the upstream is out of service.", "to"), func(to *upstream.Server) bool { return to.Down }},
	{gauge("nodens_upstream_suspected", "1 while the upstream is suspect because it left queries unanswered; other upstreams are asked first.", "to"),
		func(to *upstream.Server) bool { return to.Suspected }},
	{counter("nodens_upstream_suspicions_total", "How often the upstream became suspect.", "to"), func(to *upstream.Server) uint64 { return to.SuspectedTotal }},
	{gauge("nodens_upstream_rtt_seconds", "Smoothed response time of the upstream.", "to"), func(to *upstream.Server) float64 { return to.RTT.Seconds() }},
	{counter("nodens_upstream_hedges_total", "Extra queries sent to the upstream because another reply, or its own, was late.", "to"),
		func(to *upstream.Server) uint64 { return to.Hedges }},
	{counter("nodens_upstream_hedge_wins_total", "Queries of nodens_upstream_hedges_total that the upstream answered first.", "to"),
		func(to *upstream.Server) uint64 { return to.HedgeWins }},
	{counter("nodens_upstream_connection_failures_total", "Connections to the upstream that could not be opened, or failed with queries in flight.", "to"),
		func(to *upstream.Server) uint64 { return to.Broken }},
	{counter("nodens_upstream_unexpected_replies_total", "Messages from the upstream dropped because they match no query.", "to"),
		func(to *upstream.Server) uint64 { return to.UnexpectedReplies }},

	{gauge("nodens_kernel_path_active", "1 while programs in the kernel may answer queries; 0 with --kernel-path=off, on nodes that can't, and after a handover."),
		func(k kernelState) bool { return k.active }},
	{counter("nodens_kernel_path_queries_total", "Queries seen by the program on pod interfaces: answered in the kernel, dropped because of --client-limit, or passed to the agent for the reason in result.", "result"),
		func(k kernelState) byLabel { return k.Results }},
	{gauge("nodens_kernel_path_interfaces", "Pod interfaces on which the program may answer."), func(k kernelState) int { return k.answering }},
	{gauge("nodens_kernel_path_interfaces_watched", "Pod interfaces on which the program only observes, because answering would bypass other programs or filters."),
		func(k kernelState) int { return k.watched }},
	{counter("nodens_kernel_path_attach_errors_total", "Failures to attach the program to a pod interface."), func(k kernelState) uint64 { return k.failed }},
	{counter("nodens_kernel_path_samples_dropped_total", "Samples of clients and names of answered queries that were dropped because the agent had not read the earlier ones."),
		func(k kernelState) uint64 { return k.SamplesDropped }},

	{counter("nodens_bypass_packets_total", "Packets of pods to DNS servers other than the agent, by protocol: udp, tcp, tls, quic, and https and http3 to addresses of --bypass-doh. Over TCP the first packet of each connection counts. Only with --bypass=count.", "proto"),
		(*bypassCounts).byProtocol},

	{counter("nodens_trace_spans_total", "Spans that the collector of traces has taken, by collector. Only with trace.", "endpoint").summed(), (*otlp.Exporter).Sent},
	{counter("nodens_trace_spans_dropped_total", "Spans dropped, by collector of traces and by reason: too many waited (queue), the collector did not take them in time (failed), or it refused them (rejected). Only with trace.", "endpoint", "reason").summed(),
		(*otlp.Exporter).EachDropped},

	// Clients are grouped, and the groups are bounded: names of pods would be a series for each pod that ever ran.
	{counter("nodens_client_queries_total", "Queries by the client's namespace, and with --client-metrics=workload by its workload, such as Deployment/web, and by result: noerror, nxdomain, servfail or other. The namespace is (host) for the node itself, (unknown) for addresses of no known pod, and (other) beyond 32 namespaces or 64 workloads. The annotation nodens.dev/client-metrics of a Namespace chooses namespace, workload, or off, which counts its pods as (other). A series ends 60 s after the last pod.", "namespace", "workload", "result"),
		func(x clients.Counts) byLabel {
			return byLabel{"noerror": x.NoError, "nxdomain": x.NXDomain, "servfail": x.ServFail, "other": x.Other}
		}},
	{counter("nodens_client_search_waste_total", "Queries of nodens_client_queries_total answered NXDOMAIN for names that only a search path makes.", "namespace", "workload"),
		func(x clients.Counts) uint64 { return x.Waste }},
	{counter("nodens_client_upstream_queries_total", "Queries of nodens_client_queries_total for which an upstream was asked.", "namespace", "workload"),
		func(x clients.Counts) uint64 { return x.Upstream }},
	{counter("nodens_client_limited_total", "Queries that were shed, refused or dropped because of a limit, and connections closed for another client's, by the client's namespace and by the limit: client_limit (over the rate of client_limit or --client-limit), places (no place to wait in, or lost it), in_flight (too many queries in flight to the upstreams), budget (over max_rate), socket (dropped by the socket's reader), connections. Only places, in_flight and budget are also counted in nodens_client_queries_total.", "namespace", "reason").summed(),
		func(x clients.Series, s series) {
			for reason, n := range x.Counts.Limited {
				s.put(n, clients.Reason(reason).String())
			}
		}},
	{counter("nodens_client_slow_total", "Queries of nodens_client_queries_total answered after 100 ms or later.", "namespace", "workload"),
		func(x clients.Counts) uint64 { return x.Slow }},

	{counter("nodens_dns_policy_denied_total", "Queries that a DNSPolicy denied (mode enforce) or, being in audit mode, would have denied (audit), without names that only a search path makes. Beyond 1,024 policies the policy is (other). Only with --dns-policies.", "namespace", "policy", "mode"),
		(*dnspolicy.Counters).Each},
	{counter("nodens_rpz_queries_total", "Queries that a rule of a response policy zone changed the reply to (mode enforce) or, being in audit mode, would have (audit), by the rule's action: nxdomain, nodata, drop, tcp_only, redirect or local_data. Names that only a search path makes are not counted. Only with rpz.", "zone", "action", "mode").summed(),
		func(z rpzZone, f func(action, mode string, n uint64)) { z.queries(f) }},
	{gauge("nodens_rpz_rules", "Rules of a response policy zone, by kind: for names, for addresses, or ignored because of a trigger or an action that is not supported. Only with rpz.", "zone", "kind").summed(),
		func(z rpzZone) byLabel { return z.rules }},
	{gauge("nodens_rpz_zones", "Response policy zones by state: loaded; or empty, which deny nothing because they could not be read or transferred yet. Only with rpz.", "state").summed(),
		func(state rpzZoneState, s series) { s.put(1, string(state)) }},
	{gauge("nodens_tunnel_suspects", "Clients that may send data in the names of their queries, with the domains, by the client's namespace. Only with tunnel.", "namespace").summed(),
		func(x tunnel.Suspect, s series) { s.put(1, x.Owner.Namespace) }},
	{counter("nodens_tunnel_limited_total", "Queries of suspects that were refused because of the limit of tunnel. Only with tunnel.").summed(),
		(*tunnel.Detector).Limited},
	{gauge("nodens_dns_policies", "DNSPolicies by state: known, or bound to a pod of the node. Only with --dns-policies.", "state"),
		func(st kubernetes.PolicyStats) byLabel {
			return byLabel{"known": uint64(st.Policies), "bound": uint64(st.Bound)}
		}},
	{gauge("nodens_dns_policy_names", "Names in the lists of all DNSPolicies. Only with --dns-policies."),
		func(st kubernetes.PolicyStats) int { return st.Names }},
	{gauge("nodens_egress_set_addresses", "Addresses in the egress sets of DNSPolicies, at the last check. Only with --dns-policies."),
		func(st dnspolicy.EgressStats) uint64 { return st.Addresses }},
	{counter("nodens_egress_set_writes_total", "Transactions that added addresses to egress sets of DNSPolicies. Only with --dns-policies."),
		func(st dnspolicy.EgressStats) uint64 { return st.Writes }},
	{counter("nodens_egress_set_failures_total", "Replies with an address that did not enter an egress set: because of an error of the packet filter (error), or because the set is full (full). Only with --dns-policies.", "reason"),
		func(st dnspolicy.EgressStats) byLabel { return byLabel{"error": st.Failed, "full": st.Full} }},

	// CoreDNS's metrics of the directive grpc.
	{counter("coredns_grpc_requests_total", "Exchanges with upstreams of the directive grpc.", "to"), func(x viaGRPC) uint64 { return x.total.Count }},
	{counter("coredns_grpc_responses_total", "Exchanges with upstreams of the directive grpc, by rcode.", "to", "rcode"),
		func(x rcodeGRPC) uint64 { return x.Count }},
	{histogram("coredns_grpc_request_duration_seconds", "Duration of exchanges with upstreams of the directive grpc.", "to"),
		func(x viaGRPC) stat.Snapshot { return x.total }},

	// Of upstreams with max_rate.
	{gauge("nodens_upstream_budget_limit", "Queries per second that the upstream gets at most (max_rate); 0 while max_rate auto has found no limit.", "to"),
		func(b *upstream.BudgetStats) float64 { return b.Limit }},
	{gauge("nodens_upstream_budget_used_ratio", "Share of nodens_upstream_budget_limit that was sent in the last second. A burst raises it above 1.", "to"),
		func(b *upstream.BudgetStats) float64 { return b.Used }},
	{gauge("nodens_upstream_budget_waiting", "Queries that wait because of max_rate.", "to"), func(b *upstream.BudgetStats) int { return b.Waiting }},
	{counter("nodens_upstream_budget_expired_total", "Queries that failed, or got an expired answer, because they waited for max_rate for the read_timeout.", "to"),
		func(b *upstream.BudgetStats) uint64 { return b.Expired }},
	{counter("nodens_upstream_budget_given_up_total", "Hedged queries, health probes and refreshes that were not sent because of max_rate.", "to"),
		func(b *upstream.BudgetStats) uint64 { return b.GivenUp }},
}
