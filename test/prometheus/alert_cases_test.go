package prometheus

import "slices"

// alertCase is a sequence of events that makes an alert fire, and its end.
type alertCase struct {
	alert, severity string
	// series are the scraped samples, one per minute from minute 0, in promtool's notation.
	series map[string]string
	// labels are the labels of the alert except its name and severity.
	labels map[string]string
	// inactive and then over are minutes in which it doesn't fire, around fires, in which it
	// does.
	inactive []int
	firing   []int
	resolved []int
}

// agentLabels are the labels of the agent's series, and alertLabels those of its alerts.
const agentLabels = `job="node-local-dns",node="a",instance="192.0.2.1:9253"`

var alertLabels = map[string]string{"node": "a", "instance": "192.0.2.1:9253"}

// alertLabelsWith returns alertLabels with more labels, given as names and values.
func alertLabelsWith(labels ...string) map[string]string {
	m := make(map[string]string)
	for k, v := range alertLabels {
		m[k] = v
	}
	for i := 0; i < len(labels); i += 2 {
		m[labels[i]] = labels[i+1]
	}
	return m
}

// allAlertCases has a case for each alert of rules.yaml.
func allAlertCases() []alertCase { return slices.Concat(alertCases, clientAlertCases) }

// alertCases are the cases of the alerts that are not about clients.
var alertCases = []alertCase{
	{
		alert: "NodensAbsent", severity: "critical",
		series:   map[string]string{"up{" + agentLabels + "}": "1x9 0x9 1x9"},
		inactive: []int{5, 14}, firing: []int{15, 19}, resolved: []int{20},
	}, {
		alert: "NodensAgentDown", severity: "warning",
		series: map[string]string{"up{" + agentLabels + "}": "1x9 0x9 1x9"},
		labels: alertLabels, inactive: []int{5, 14}, firing: []int{15, 19}, resolved: []int{20},
	}, {
		// During an upgrade two pods have the same address: no alert for the old one.
		alert: "NodensAgentDown", severity: "warning",
		series: map[string]string{
			"up{" + agentLabels + `,pod="old"}`: "1x9 0x19",
			"up{" + agentLabels + `,pod="new"}`: "1x19 0x9",
		},
		labels: alertLabels, inactive: []int{5, 15, 19, 24}, firing: []int{25}, resolved: nil,
	}, {
		alert: "NodensFailOpenActive", severity: "warning",
		series: map[string]string{
			"up{" + agentLabels + "}":                        "1x9 0x9 1x9",
			"nodens_netsetup_fail_open{" + agentLabels + "}": "1x9 stale _x8 1x9",
		},
		labels: alertLabels, inactive: []int{5, 11}, firing: []int{12, 19}, resolved: []int{20},
	}, {
		alert: "NodensNodeWithoutDNS", severity: "critical",
		series: map[string]string{
			"up{" + agentLabels + "}":                        "1x9 0x9 1x9",
			"nodens_netsetup_fail_open{" + agentLabels + "}": "0x9 stale _x8 0x9",
		},
		labels: alertLabels, inactive: []int{5, 10}, firing: []int{11, 19}, resolved: []int{20},
	}, {
		alert: "NodensPodsMissing", severity: "warning",
		series: map[string]string{
			`kube_daemonset_status_desired_number_scheduled{namespace="kube-system",daemonset="node-local-dns"}`: "3x60",
			`kube_daemonset_status_number_ready{namespace="kube-system",daemonset="node-local-dns"}`:             "3x9 2x19 3x19",
		},
		labels:   map[string]string{"namespace": "kube-system", "daemonset": "node-local-dns"},
		inactive: []int{5, 24}, firing: []int{25, 29}, resolved: []int{30},
	}, {
		alert: "NodensRestarting", severity: "warning",
		series: map[string]string{"process_start_time_seconds{" + agentLabels + `,pod="p"}`: "100x9 200x9 300x9 400x90"},
		labels: alertLabels, inactive: []int{5, 15, 25}, firing: []int{30, 60}, resolved: []int{80},
	}, {
		alert: "NodensPanics", severity: "warning",
		series: map[string]string{"coredns_panics_total{" + agentLabels + "}": "0x9 1x30"},
		labels: alertLabels, inactive: []int{5}, firing: []int{10, 15}, resolved: []int{25},
	}, {
		alert: "NodensReloadFailed", severity: "warning",
		series: map[string]string{"nodens_config_refused{" + agentLabels + "}": "0x9 1x9 0x9"},
		labels: alertLabels, inactive: []int{5, 11}, firing: []int{12, 19}, resolved: []int{20},
	}, {
		alert: "NodensConfigAwaited", severity: "warning",
		series: map[string]string{"nodens_config_awaited{" + agentLabels + "}": "0x9 1x29 0x9"},
		labels: alertLabels, inactive: []int{5, 24}, firing: []int{25, 39}, resolved: []int{40},
	}, {
		alert: "NodensLogLinesDropped", severity: "warning",
		series: map[string]string{"nodens_log_lines_dropped_total{" + agentLabels + "}": "0x9 10+10x19 200x30"},
		labels: alertLabels, inactive: []int{5, 14}, firing: []int{16, 29}, resolved: []int{45},
	}, {
		alert: "NodensViewSetBack", severity: "warning",
		series: map[string]string{"nodens_kubernetes_set_backs_total{" + agentLabels + "}": "0x9 1x60"},
		labels: alertLabels, inactive: []int{5}, firing: []int{10, 30}, resolved: []int{50},
	}, {
		alert: "NodensHandoverFailed", severity: "warning",
		series: map[string]string{
			"nodens_handovers_total{" + agentLabels + `,role="predecessor",result="resumed"}`:  "0x9 1x60",
			"nodens_handovers_total{" + agentLabels + `,role="predecessor",result="complete"}`: "0+1x60",
		},
		labels: alertLabelsWith("role", "predecessor", "result", "resumed"), inactive: []int{5}, firing: []int{10, 30}, resolved: []int{45},
	}, {
		// A new agent counts its failure before its first scrape.
		alert: "NodensHandoverFailed", severity: "warning",
		series: map[string]string{
			"nodens_handovers_total{" + agentLabels + `,role="successor",result="failed"}`:   "_x9 1x60",
			"nodens_handovers_total{" + agentLabels + `,role="successor",result="complete"}`: "_x9 3x60",
		},
		labels: alertLabelsWith("role", "successor", "result", "failed"), inactive: []int{5}, firing: []int{10, 30}, resolved: []int{45},
	}, {
		alert: "NodensHandoverFailed", severity: "warning",
		series: map[string]string{
			"nodens_handovers_total{" + agentLabels + `,role="predecessor",result="returned"}`: "0x9 1x60",
		},
		labels: alertLabelsWith("role", "predecessor", "result", "returned"), inactive: []int{5}, firing: []int{10, 30}, resolved: []int{45},
	}, {
		alert: "NodensErrorsHigh", severity: "warning",
		series: map[string]string{
			"coredns_dns_requests_total{" + agentLabels + "}":                   "0+1000x90",
			"coredns_dns_responses_total{" + agentLabels + `,rcode="NOERROR"}`:  "0+900x90",
			"coredns_dns_responses_total{" + agentLabels + `,rcode="SERVFAIL"}`: "0+10x9 200+100x29 3110+0x50",
		},
		labels: alertLabels, inactive: []int{5, 15}, firing: []int{25, 39}, resolved: []int{50},
	}, {
		alert: "NodensErrorsHigh", severity: "critical",
		series: map[string]string{
			"coredns_dns_requests_total{" + agentLabels + "}":                   "0+1000x90",
			"coredns_dns_responses_total{" + agentLabels + `,rcode="NOERROR"}`:  "0+500x90",
			"coredns_dns_responses_total{" + agentLabels + `,rcode="SERVFAIL"}`: "0+10x9 200+500x29 15110+0x50",
		},
		labels: alertLabels, inactive: []int{5, 12}, firing: []int{25, 39}, resolved: []int{50},
	}, {
		// Few queries, and all fail: no alert.
		alert: "NodensErrorsHigh", severity: "critical",
		series: map[string]string{
			"coredns_dns_requests_total{" + agentLabels + "}":                   "0+1x90",
			"coredns_dns_responses_total{" + agentLabels + `,rcode="SERVFAIL"}`: "0+1x90",
		},
		inactive: []int{5, 30, 60},
	}, {
		alert: "NodensLatencyHigh", severity: "warning",
		series: map[string]string{
			"coredns_dns_requests_total{" + agentLabels + "}":                            "0+100x90",
			"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="1"}`:    "0+100x9 1000+90x29 3700+100x50",
			"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="2"}`:    "0+100x90",
			"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="+Inf"}`: "0+100x90",
		},
		labels: alertLabels, inactive: []int{5, 15}, firing: []int{25, 39}, resolved: []int{50},
	}, {
		alert: "NodensSocketWaitHigh", severity: "warning",
		series: map[string]string{
			"nodens_dns_socket_wait_seconds_bucket{" + agentLabels + `,le="0.1"}`:  "0+100x9 1000+90x29 3700+100x50",
			"nodens_dns_socket_wait_seconds_bucket{" + agentLabels + `,le="0.2"}`:  "0+100x90",
			"nodens_dns_socket_wait_seconds_bucket{" + agentLabels + `,le="+Inf"}`: "0+100x90",
		},
		labels: alertLabels, inactive: []int{5, 12}, firing: []int{20, 39}, resolved: []int{50},
	}, {
		alert: "NodensShedding", severity: "warning",
		series: map[string]string{"nodens_dns_shed_total{" + agentLabels + "}": "0x9 0+10x20 200x30"},
		labels: alertLabels, inactive: []int{5, 14}, firing: []int{18, 30}, resolved: []int{40},
	}, {
		alert: "NodensConnectionsRefused", severity: "warning",
		series: map[string]string{"nodens_dns_connections_refused_total{" + agentLabels + "}": "0x9 0+10x20 200x30"},
		labels: alertLabels, inactive: []int{5, 14}, firing: []int{18, 30}, resolved: []int{40},
	}, {
		alert: "NodensUpstreamDown", severity: "warning",
		series: map[string]string{
			"nodens_upstream_down{" + agentLabels + `,to="192.0.2.53:53"}`: "0x9 1x9 0x9",
			"nodens_upstream_down{" + agentLabels + `,to="192.0.2.54:53"}`: "0x30",
		},
		labels: alertLabelsWith("to", "192.0.2.53:53"), inactive: []int{5, 11}, firing: []int{12, 19}, resolved: []int{20},
	}, {
		alert: "NodensUpstreamsAllDown", severity: "critical",
		series: map[string]string{"coredns_forward_healthcheck_broken_total{" + agentLabels + "}": "0x9 0+10x9 90x30"},
		labels: alertLabels, inactive: []int{5, 11}, firing: []int{15, 19}, resolved: []int{30},
	}, {
		alert: "NodensForwardingLoop", severity: "critical",
		series: map[string]string{
			"nodens_loop_detected{" + agentLabels + `,server="dns://:53",zone="."}`:              "0x9 1x9 0x9",
			"nodens_loop_detected{" + agentLabels + `,server="dns://:53",zone="cluster.local."}`: "0x30",
		},
		labels: alertLabelsWith("zone", "."), inactive: []int{5, 10}, firing: []int{11, 19}, resolved: []int{20},
	}, {
		alert: "NodensTunnelSuspected", severity: "warning",
		series: map[string]string{
			"nodens_tunnel_suspects{" + agentLabels + `,namespace="shop"}`: "_x10 1x9 0x9",
			"nodens_tunnel_suspects{" + agentLabels + `,namespace="ci"}`:   "0x30",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{5, 10}, firing: []int{11, 19}, resolved: []int{20},
	}, {
		alert: "NodensUpstreamBudgetNearlyUsed", severity: "warning",
		series: map[string]string{
			"nodens_upstream_budget_used_ratio{" + agentLabels + `,to="10.0.0.1:53"}`: "0.3x9 0.9x20 0.3x20",
			// High for a moment only.
			"nodens_upstream_budget_used_ratio{" + agentLabels + `,to="10.0.0.2:53"}`: "0.3x9 1.05x1 0.3x40",
			// Busy, and below the threshold.
			"nodens_upstream_budget_used_ratio{" + agentLabels + `,to="10.0.0.3:53"}`: "0.75x60",
			// max_rate auto without a limit yet.
			"nodens_upstream_budget_used_ratio{" + agentLabels + `,to="10.0.0.4:53"}`: "0x60",
		},
		labels: alertLabelsWith("to", "10.0.0.1:53"), inactive: []int{8, 15}, firing: []int{20, 29}, resolved: []int{40},
	}, {
		alert: "NodensServingStale", severity: "warning",
		series: map[string]string{
			"coredns_dns_requests_total{" + agentLabels + "}":       "0+100x90",
			"coredns_cache_served_stale_total{" + agentLabels + "}": "0x9 0+10x29 290x30",
		},
		labels: alertLabels, inactive: []int{5, 15}, firing: []int{25, 39}, resolved: []int{50},
	}, {
		alert: "NodensKeptNameExpired", severity: "warning",
		series: map[string]string{
			"nodens_kept_names{" + agentLabels + `,zone=".",state="current"}`: "3x9 2x19 3x30",
			"nodens_kept_names{" + agentLabels + `,zone=".",state="expired"}`: "0x9 1x19 0x30",
		},
		labels: alertLabelsWith("zone", "."), inactive: []int{8, 13}, firing: []int{16, 29}, resolved: []int{31},
	}, {
		alert: "NodensCacheThrashing", severity: "warning",
		series: map[string]string{
			"coredns_cache_requests_total{" + agentLabels + "}":                   "0+10000x90",
			"coredns_cache_hits_total{" + agentLabels + `,type="success"}`:        "0+9000x9 81000+1000x40 121000+9000x30",
			"coredns_cache_misses_total{" + agentLabels + "}":                     "0+1000x9 9000+9000x40 369000+1000x30",
			"coredns_cache_evictions_total{" + agentLabels + `,type="success"}`:   "0x9 0+8000x40 320000x30",
			"coredns_cache_evictions_total{" + agentLabels + `,type="denial"}`:    "0x90",
			"coredns_cache_entries{" + agentLabels + `,type="success",zones="."}`: "9984x90",
		},
		labels: alertLabels, inactive: []int{5, 20}, firing: []int{35, 49}, resolved: []int{60},
	}, {
		// A full cache with a high hit ratio: most misses evict an entry.
		alert: "NodensCacheThrashing", severity: "warning",
		series: map[string]string{
			"coredns_cache_requests_total{" + agentLabels + "}":                 "0+10000x90",
			"coredns_cache_hits_total{" + agentLabels + `,type="success"}`:      "0+8000x90",
			"coredns_cache_misses_total{" + agentLabels + "}":                   "0+2000x90",
			"coredns_cache_evictions_total{" + agentLabels + `,type="success"}`: "0+1900x90",
		},
		inactive: []int{5, 30, 60},
	}, {
		// A low hit ratio with few evictions.
		alert: "NodensCacheThrashing", severity: "warning",
		series: map[string]string{
			"coredns_cache_requests_total{" + agentLabels + "}":                 "0+10000x90",
			"coredns_cache_hits_total{" + agentLabels + `,type="success"}`:      "0+1000x90",
			"coredns_cache_misses_total{" + agentLabels + "}":                   "0+9000x90",
			"coredns_cache_evictions_total{" + agentLabels + `,type="success"}`: "0+900x90",
		},
		inactive: []int{5, 30, 60},
	}, {
		alert: "NodensViewUnsynced", severity: "critical",
		series: map[string]string{"nodens_kubernetes_synced{" + agentLabels + "}": "1x9 0x9 1x9"},
		labels: alertLabels, inactive: []int{5, 14}, firing: []int{15, 19}, resolved: []int{20},
	}, {
		alert: "NodensViewStale", severity: "warning",
		series: map[string]string{
			"coredns_kubernetes_rest_client_requests_total{" + agentLabels + `,code="200",method="GET"}`:     "9x60",
			"coredns_kubernetes_rest_client_requests_total{" + agentLabels + `,code="<error>",method="GET"}`: "0x9 0+1x50",
			"nodens_kubernetes_last_event_age_seconds{" + agentLabels + "}":                                  "30x9 0+60x19 5x30",
		},
		labels: alertLabels, inactive: []int{5, 15, 20}, firing: []int{21, 29}, resolved: []int{30},
	}, {
		// Before the first event there is no age.
		alert: "NodensViewStale", severity: "warning",
		series: map[string]string{
			"nodens_kubernetes_synced{" + agentLabels + "}":                                              "0x60",
			"coredns_kubernetes_rest_client_requests_total{" + agentLabels + `,code="401",method="GET"}`: "0+3x60",
		},
		inactive: []int{5, 30, 60},
	}, {
		// A view made from files gets no events.
		alert: "NodensViewStale", severity: "warning",
		series:   map[string]string{"nodens_kubernetes_last_event_age_seconds{" + agentLabels + "}": "0+60x60"},
		inactive: []int{5, 30, 60},
	}, {
		alert: "NodensSetupErrors", severity: "critical",
		series: map[string]string{
			"coredns_nodecache_setup_errors_total{" + agentLabels + `,errortype="iptables"}`:      "0x9 0+1x19 19x30",
			"coredns_nodecache_setup_errors_total{" + agentLabels + `,errortype="interface_add"}`: "0x60",
		},
		labels: alertLabelsWith("errortype", "iptables"), inactive: []int{5, 14}, firing: []int{18, 29}, resolved: []int{40},
	}, {
		alert: "NodensFailOpenLost", severity: "warning",
		series: map[string]string{"nodens_netsetup_fail_open{" + agentLabels + "}": "1x9 0x19 1x9"},
		labels: alertLabels, inactive: []int{5, 24}, firing: []int{25, 29}, resolved: []int{30},
	}, {
		alert: "NodensNoFallback", severity: "warning",
		series: map[string]string{
			"nodens_netsetup_fail_open{" + agentLabels + "}":          "1x60",
			"nodens_netsetup_fallback_endpoints{" + agentLabels + "}": "2x9 0x19 2x9",
		},
		labels: alertLabels, inactive: []int{5, 24}, firing: []int{25, 29}, resolved: []int{30},
	}, {
		// If the rules don't fail open, another alert fires.
		alert: "NodensNoFallback", severity: "warning",
		series: map[string]string{
			"nodens_netsetup_fail_open{" + agentLabels + "}":          "0x60",
			"nodens_netsetup_fallback_endpoints{" + agentLabels + "}": "0x60",
		},
		inactive: []int{5, 30, 60},
	}, {
		alert: "NodensRulesModified", severity: "warning",
		series: map[string]string{"nodens_netsetup_repairs_total{" + agentLabels + "}": "0x9 0+1x40 40x90"},
		labels: alertLabels, inactive: []int{5, 15}, firing: []int{30, 60}, resolved: []int{120},
	}, {
		alert: "NodensCertificateExpiring", severity: "warning",
		series: map[string]string{"nodens_tls_certificate_expiry_timestamp_seconds{" + agentLabels + `,file="/etc/tls.pem"}`: "900000x20 604200x120 900000x60"},
		labels: alertLabelsWith("file", "/etc/tls.pem"), inactive: []int{5, 60}, firing: []int{90, 140}, resolved: []int{145},
	}, {
		alert: "NodensCertificateExpiring", severity: "critical",
		series: map[string]string{"nodens_tls_certificate_expiry_timestamp_seconds{" + agentLabels + `,file="/etc/tls.pem"}`: "604800x20 60000x20 604800x60"},
		labels: alertLabelsWith("file", "/etc/tls.pem"), inactive: []int{5, 25}, firing: []int{30, 40}, resolved: []int{45},
	}, {
		alert: "NodensCertificateRefused", severity: "warning",
		series: map[string]string{"nodens_tls_reload_failed_total{" + agentLabels + `,file="/etc/tls.pem"}`: "0x9 1x120"},
		labels: alertLabelsWith("file", "/etc/tls.pem"), inactive: []int{5}, firing: []int{10, 60}, resolved: []int{80},
	},
}
