package prometheus

// CommunityQueries are equivalents of the queries in common dashboards and alerts for CoreDNS
// and NodeLocal DNSCache, one of each kind. $job is the name of the scrape job, also where the
// original has none, so that series of other servers don't count. A scraped agent must have
// data for all of them.
//
//   - mixin: the CoreDNS mixin's dashboard and alerts, with those for node-local-dns;
//   - 12539: the dashboard of that number on grafana.com, which updates 5926's names to those
//     of CoreDNS 1.7, and which kube-prometheus-stack and the node-local-dns chart carry;
//   - 15762: "Kubernetes / System / CoreDNS".
//
// Metrics that CoreDNS removed in 1.7 are omitted: the names of 5926
// (coredns_dns_request_count_total, coredns_dns_request_type_count_total,
// coredns_dns_request_do_count_total, coredns_dns_response_rcode_count_total,
// coredns_panic_count_total, coredns_cache_size), which 12539 uses if the new
// ones have no data, and the mixin's alert on coredns_nodecache_setup_errors beside the one on
// coredns_nodecache_setup_errors_total.
var CommunityQueries = []Query{
	{"mixin", "up", `sum(up{job="$job"})`},
	{"mixin", "panics", `sum(coredns_panics_total{job="$job"})`},
	{"mixin", "replies by rcode", `sum by (rcode) (rate(coredns_dns_responses_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "upstream replies by rcode", `sum by (rcode) (rate(coredns_forward_responses_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "duration", `histogram_quantile(0.99, sum by (server, zone, le) (rate(coredns_dns_request_duration_seconds_bucket{job="$job"}[$__rate_interval])))`},
	{"mixin", "upstream duration", `histogram_quantile(0.99, sum by (to, le) (rate(coredns_forward_request_duration_seconds_bucket{job="$job"}[$__rate_interval])))`},
	{"mixin", "queries by type", `sum by (type) (rate(coredns_dns_requests_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "queries by zone", `sum by (zone) (rate(coredns_dns_requests_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "upstream queries", `sum by (to) (rate(coredns_forward_requests_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "programming duration", `histogram_quantile(0.99, sum by (service_kind, le) (rate(coredns_kubernetes_dns_programming_duration_seconds_bucket{job="$job"}[$__rate_interval])))`},
	{"mixin", "plugins", `count(sum by (name) (coredns_plugin_enabled{job="$job"}))`},
	{"mixin", "query size", `histogram_quantile(0.5, sum by (server, zone, proto, le) (rate(coredns_dns_request_size_bytes_bucket{job="$job"}[$__rate_interval])))`},
	{"mixin", "reply size", `histogram_quantile(0.5, sum by (server, zone, proto, le) (rate(coredns_dns_response_size_bytes_bucket{job="$job"}[$__rate_interval])))`},
	{"mixin", "cached", `sum(coredns_cache_hits_total{job="$job"}) / (sum(coredns_cache_misses_total{job="$job"}) + sum(coredns_cache_hits_total{job="$job"}))`},
	{"mixin", "cache hits", `sum by (type) (rate(coredns_cache_hits_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "cache misses", `sum(rate(coredns_cache_misses_total{job="$job"}[$__rate_interval]))`},
	{"mixin", "cache size", `sum by (type) (coredns_cache_entries{job="$job"})`},
	{"mixin", "memory", `process_resident_memory_bytes{job="$job"}`},
	{"mixin", "CPU", `rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])`},
	{"mixin", "goroutines", `go_goroutines{job="$job"}`},
	{"mixin", "alert on SERVFAIL", `sum(rate(coredns_dns_responses_total{job="$job", rcode="SERVFAIL"}[5m])) / sum(rate(coredns_dns_responses_total{job="$job"}[5m]))`},
	{"mixin", "alert on upstream SERVFAIL", `sum(rate(coredns_forward_responses_total{job="$job", rcode="SERVFAIL"}[5m])) / sum(rate(coredns_forward_responses_total{job="$job"}[5m]))`},
	{"mixin", "alert on upstream probes", `sum by (to) (rate(coredns_forward_healthcheck_failures_total{job="$job"}[5m]))`},
	{"mixin", "alert on no upstream", `sum(rate(coredns_forward_healthcheck_broken_total{job="$job"}[5m]))`},
	{"mixin", "alert on set-up", `rate(coredns_nodecache_setup_errors_total{job="$job"}[5m])`},

	{"12539", "queries by protocol", `sum by (proto) (rate(coredns_dns_request_count_total{job=~"$job"}[5m])) or sum by (proto) (rate(coredns_dns_requests_total{job=~"$job", instance=~"$instance"}[5m]))`},
	{"12539", "queries by type", `sum by (type) (rate(coredns_dns_request_type_count_total{job=~"$job"}[5m])) or sum by (type) (rate(coredns_dns_requests_total{job=~"$job", instance=~"$instance"}[5m]))`},
	{"12539", "DO bit", `sum(rate(coredns_dns_request_do_count_total{job=~"$job"}[5m])) or sum(rate(coredns_dns_do_requests_total{job=~"$job", instance=~"$instance"}[5m]))`},
	{"12539", "query size, UDP", `histogram_quantile(0.9, sum by (le, proto) (rate(coredns_dns_request_size_bytes_bucket{job=~"$job", proto="udp"}[5m])))`},
	{"12539", "query size, TCP", `histogram_quantile(0.9, sum by (le, proto) (rate(coredns_dns_request_size_bytes_bucket{job=~"$job", proto="tcp"}[5m])))`},
	{"12539", "reply size, UDP", `histogram_quantile(0.9, sum by (le, proto) (rate(coredns_dns_response_size_bytes_bucket{job=~"$job", proto="udp"}[5m])))`},
	{"12539", "reply size, TCP", `histogram_quantile(0.9, sum by (le, proto) (rate(coredns_dns_response_size_bytes_bucket{job=~"$job", proto="tcp"}[5m])))`},
	{"12539", "replies by rcode", `sum by (rcode) (rate(coredns_dns_response_rcode_count_total{job=~"$job"}[5m])) or sum by (rcode) (rate(coredns_dns_responses_total{job=~"$job"}[5m]))`},
	{"12539", "duration", `histogram_quantile(0.9, sum by (le, job) (rate(coredns_dns_request_duration_seconds_bucket{job=~"$job"}[5m])))`},
	{"12539", "cache size", `sum by (type) (coredns_cache_size{job=~"$job"}) or sum by (type) (coredns_cache_entries{job=~"$job"})`},
	{"12539", "cache misses", `sum by (type) (rate(coredns_cache_misses_total{job=~"$job"}[5m]))`},

	{"15762", "up", `up{job="$job", instance=~"$instance"}`},
	{"15762", "queries over UDP", `sum(rate(coredns_dns_requests_total{job="$job", instance=~"$instance", proto="udp"}[$__rate_interval]))`},
	{"15762", "queries over TCP", `sum(rate(coredns_dns_requests_total{job="$job", instance=~"$instance", proto="tcp"}[$__rate_interval]))`},
	{"15762", "packet size", `avg by (proto) (rate(coredns_dns_request_size_bytes_sum{job="$job", instance=~"$instance", proto="udp"}[$__rate_interval]))`},
	{"15762", "upstream queries", `sum(rate(coredns_forward_requests_total{job="$job"}[$__rate_interval]))`},
	{"15762", "upstream errors", `sum by (rcode) (rate(coredns_forward_responses_total{job="$job", rcode=~"SERVFAIL|REFUSED"}[$__rate_interval]))`},
	{"15762", "cache hits", `sum by (type) (rate(coredns_cache_hits_total{job="$job", instance=~"$instance"}[$__rate_interval]))`},
	{"15762", "cache size", `sum by (type) (coredns_cache_entries{job="$job"})`},
}
