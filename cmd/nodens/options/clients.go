package options

import "errors"

// ClientMetrics is the value of --client-metrics.
type ClientMetrics uint8

// The values.
const (
	ClientMetricsOff       ClientMetrics = iota // queries are not counted by client at all
	ClientMetricsNamespace                      // metrics by namespace
	ClientMetricsWorkload                       // metrics by namespace and workload
)

// clientMetrics are the names of the values.
var clientMetrics = [...]string{"off", "namespace", "workload"}

// Set sets m to the value of that name.
func (m *ClientMetrics) Set(s string) error {
	for i, word := range clientMetrics {
		if s == word {
			*m = ClientMetrics(i)
			return nil
		}
	}
	return errors.New("give off, namespace or workload")
}

// String returns the name of the value.
func (m ClientMetrics) String() string { return clientMetrics[m] }
