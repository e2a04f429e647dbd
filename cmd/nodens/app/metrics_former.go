package app

import "github.com/prometheus/client_golang/prometheus"

// formerName returns a metric's name before CoreDNS 1.7, with the labels of today's metric.
func formerName(name, today string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, "The name of "+today+" before CoreDNS 1.7.", labels, nil)
}

// formerNames are the names of --former-metric-names, by the metrics of today.
var formerNames = map[*prometheus.Desc][]*prometheus.Desc{
	panics.desc: {formerName("coredns_panic_count_total", "coredns_panics_total")},
	requests.desc: {
		formerName("coredns_dns_request_count_total", "coredns_dns_requests_total", "server", "zone", "view", "proto", "family", "type"),
		formerName("coredns_dns_request_type_count_total", "coredns_dns_requests_total", "server", "zone", "view", "proto", "family", "type"),
	},
	responses.desc:        {formerName("coredns_dns_response_rcode_count_total", "coredns_dns_responses_total", "server", "zone", "view", "rcode", "plugin")},
	doRequests.desc:       {formerName("coredns_dns_request_do_count_total", "coredns_dns_do_requests_total", "server", "zone", "view")},
	cacheEntries.desc:     {formerName("coredns_cache_size", "coredns_cache_entries", "server", "type", "zones", "view")},
	forwardRequests.desc:  {formerName("coredns_forward_request_count_total", "coredns_forward_requests_total", "to")},
	forwardResponses.desc: {formerName("coredns_forward_response_rcode_count_total", "coredns_forward_responses_total", "to", "rcode")},
	forwardBroken.desc:    {formerName("coredns_forward_healthcheck_broken_count_total", "coredns_forward_healthcheck_broken_total")},
	forwardRejects.desc:   {formerName("coredns_forward_max_concurrent_reject_count_total", "coredns_forward_max_concurrent_rejects_total")},
	reloadFailed.desc:     {formerName("coredns_reload_failed_count_total", "coredns_reload_failed_total")},
	hostsEntries.desc:     {formerName("coredns_hosts_entries_count", "coredns_hosts_entries")},
}

// withFormerNames adds each metric that has former names under these.
type withFormerNames struct{ prometheus.Collector }

// Collect implements [prometheus.Collector].
func (c withFormerNames) Collect(to chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		c.Collector.Collect(all)
	}()
	for m := range all {
		to <- m
		for _, desc := range formerNames[m.Desc()] {
			to <- renamed{m, desc}
		}
	}
}

// renamed is a metric with another name.
type renamed struct {
	prometheus.Metric
	desc *prometheus.Desc
}

// Desc implements [prometheus.Metric].
func (r renamed) Desc() *prometheus.Desc { return r.desc }
