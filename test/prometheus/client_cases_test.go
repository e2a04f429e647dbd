package prometheus

// Labels of the series of two namespaces.
const (
	shopLabels   = agentLabels + `,namespace="shop"`
	systemLabels = agentLabels + `,namespace="kube-system"`
)

// clientAlertCases are the cases of the alerts about clients. Each has clients for which the alert
// does not fire: it fires for one series only.
var clientAlertCases = []alertCase{
	{
		alert: "NodensClientNXDomainHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_queries_total{" + shopLabels + `,result="noerror"}`:  "0+200x60",
			"nodens_client_queries_total{" + shopLabels + `,result="nxdomain"}`: "0+100x9 1000+6000x30 181000+100x20",
			// The usual ndots:5, with five search domains.
			"nodens_client_queries_total{" + systemLabels + `,result="noerror"}`:  "0+6000x60",
			"nodens_client_queries_total{" + systemLabels + `,result="nxdomain"}`: "0+30000x60",
			// Pods that wait for a Service while they start.
			"nodens_client_queries_total{" + agentLabels + `,namespace="start",result="nxdomain"}`: "0x9 0+60000x5 300000+600x45",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{8, 24}, firing: []int{30, 39}, resolved: []int{50},
	}, {
		alert: "NodensClientNXDomainHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_queries_total{" + shopLabels + `,workload="Deployment/web",result="nxdomain"}`: "0+100x9 1000+6000x30 181000+100x20",
			"nodens_client_queries_total{" + shopLabels + `,workload="Deployment/db",result="noerror"}`:   "0+9000x60",
			"nodens_client_queries_total{" + shopLabels + `,workload="Deployment/db",result="nxdomain"}`:  "0+6000x60",
		},
		labels:   alertLabelsWith("namespace", "shop", "workload", "Deployment/web"),
		inactive: []int{8, 24}, firing: []int{30, 39}, resolved: []int{50},
	}, {
		// Without honorLabels, Prometheus renames the client's label.
		alert: "NodensClientNXDomainHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_queries_total{" + systemLabels + `,exported_namespace="shop",result="nxdomain"}`:        "0+100x9 1000+6000x30 181000+100x20",
			"nodens_client_queries_total{" + systemLabels + `,exported_namespace="kube-system",result="noerror"}`:  "0+9000x60",
			"nodens_client_queries_total{" + systemLabels + `,exported_namespace="kube-system",result="nxdomain"}`: "0+6000x60",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{8, 24}, firing: []int{30, 39}, resolved: []int{50},
	}, {
		// An upgrade in the middle: the pod that Prometheus scrapes changes.
		alert: "NodensClientNXDomainHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_queries_total{" + shopLabels + `,pod="old",result="nxdomain"}`: "0+6000x24 stale",
			"nodens_client_queries_total{" + shopLabels + `,pod="new",result="nxdomain"}`: "_x24 0+6000x19 114000x20",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{8}, firing: []int{20, 26, 30, 40}, resolved: []int{50},
	}, {
		alert: "NodensSearchWasteHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_queries_total{" + shopLabels + `,result="noerror"}`:  "0+12000x70",
			"nodens_client_queries_total{" + shopLabels + `,result="nxdomain"}`: "0+48000x70",
			"nodens_client_search_waste_total{" + shopLabels + "}":              "0+100x9 1000+48000x40 1921000+100x20",
			// A large share at a low rate.
			"nodens_client_queries_total{" + systemLabels + `,result="noerror"}`:  "0+3000x70",
			"nodens_client_queries_total{" + systemLabels + `,result="nxdomain"}`: "0+12000x70",
			"nodens_client_search_waste_total{" + systemLabels + "}":              "0+12000x70",
			// A high rate, but most names exist.
			"nodens_client_queries_total{" + agentLabels + `,namespace="db",result="noerror"}`:  "0+120000x70",
			"nodens_client_queries_total{" + agentLabels + `,namespace="db",result="nxdomain"}`: "0+48000x70",
			"nodens_client_search_waste_total{" + agentLabels + `,namespace="db"}`:              "0+48000x70",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{8, 39}, firing: []int{46, 49}, resolved: []int{60},
	}, {
		alert: "NodensUpstreamShareHigh", severity: "warning",
		series: map[string]string{
			"nodens_client_upstream_queries_total{" + shopLabels + "}":   "0+3000x9 30000+60000x30 1830000+3000x20",
			"nodens_client_upstream_queries_total{" + systemLabels + "}": "0+6000x60",
			// Neither client of this node has more than half.
			`nodens_client_upstream_queries_total{job="node-local-dns",node="b",instance="b",namespace="shop"}`: "0+60000x60",
			`nodens_client_upstream_queries_total{job="node-local-dns",node="b",instance="b",namespace="db"}`:   "0+60000x60",
			// Only one client of this node uses the upstreams; another asks now and then.
			`nodens_client_upstream_queries_total{job="node-local-dns",node="c",instance="c",namespace="shop"}`: "0+60000x60",
			`nodens_client_upstream_queries_total{job="node-local-dns",node="c",instance="c",namespace="db"}`:   "0+6x60",
			// A large share of few queries.
			`nodens_client_upstream_queries_total{job="node-local-dns",node="d",instance="d",namespace="shop"}`: "0+6000x60",
			`nodens_client_upstream_queries_total{job="node-local-dns",node="d",instance="d",namespace="db"}`:   "0+120x60",
		},
		labels: alertLabelsWith("namespace", "shop"), inactive: []int{8, 24}, firing: []int{30, 39}, resolved: []int{50},
	}, {
		alert: "NodensClientLimited", severity: "warning",
		series: map[string]string{
			"nodens_client_limited_total{" + shopLabels + `,reason="client_limit"}`: "0x9 0+600x30 18000x20",
			// Another reason, now and then.
			"nodens_client_limited_total{" + shopLabels + `,reason="places"}`: "0+30x60",
			// A short burst.
			"nodens_client_limited_total{" + systemLabels + `,reason="client_limit"}`: "0x9 0+6000x3 18000x50",
			// Nothing.
			"nodens_client_limited_total{" + agentLabels + `,namespace="db",reason="budget"}`: "0x60",
		},
		labels: alertLabelsWith("namespace", "shop", "reason", "client_limit"), inactive: []int{8, 18}, firing: []int{22, 39}, resolved: []int{50},
	}, {
		// Without honorLabels, Prometheus renames the client's label.
		alert: "NodensClientLimited", severity: "warning",
		series: map[string]string{
			"nodens_client_limited_total{" + systemLabels + `,exported_namespace="shop",reason="socket"}`: "0x9 0+600x30 18000x20",
			"nodens_client_limited_total{" + systemLabels + `,exported_namespace="db",reason="socket"}`:   "0x60",
		},
		labels: alertLabelsWith("namespace", "shop", "reason", "socket"), inactive: []int{8, 18}, firing: []int{22, 39}, resolved: []int{50},
	},
}
