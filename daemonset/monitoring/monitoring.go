// Package monitoring contains a PodMonitor, rules and a dashboard for Prometheus and Grafana.
package monitoring

import _ "embed"

// The files in this folder.
var (
	//go:embed podmonitor.yaml
	PodMonitor []byte
	//go:embed rules.yaml
	PrometheusRule []byte
	//go:embed dashboard.json
	Dashboard []byte
)
