package app

import (
	"log/slog"
	"sync"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
)

// seriesLevel returns what the metrics by client are about.
func seriesLevel(by options.ClientMetrics) clients.Level {
	if by == options.ClientMetricsWorkload {
		return clients.ByWorkload
	}
	return clients.ByNamespace
}

// annotatedLevel returns the level that a value of [kubernetes.ClientMetricsAnnotation] chooses.
func annotatedLevel(value string) (l clients.Level, ok bool) {
	switch value {
	case options.ClientMetricsOff.String():
		return clients.NoSeries, true
	case options.ClientMetricsNamespace.String():
		return clients.ByNamespace, true
	case options.ClientMetricsWorkload.String():
		return clients.ByWorkload, true
	}
	return 0, false
}

// clientLevels tells the table of clients which namespaces have metrics of another level than the flag's. It
// is safe for concurrent use. A nil clientLevels does nothing.
type clientLevels struct {
	table *clients.Table
	log   *slog.Logger

	mu sync.Mutex
	// values are the annotations, by namespace and view. Views of one cluster agree.
	values map[string]map[int]string
	last   int // number of the last view
}

// newClientLevels returns a clientLevels for table; nil for nil.
func newClientLevels(table *clients.Table, log *slog.Logger) *clientLevels {
	if table == nil {
		return nil
	}
	return &clientLevels{table: table, log: log, values: make(map[string]map[int]string)}
}

// observer returns what a new view calls for the annotations of Namespaces; nil for nothing.
func (x *clientLevels) observer() func(namespace, value string) {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	view := x.last
	return func(namespace, value string) { x.set(view, namespace, value) }
}

// set records that the annotation has that value by the view, "" for none.
func (x *clientLevels) set(view int, namespace, value string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.valueOf(namespace)
	if value == "" {
		delete(x.values[namespace], view)
	} else {
		if x.values[namespace] == nil {
			x.values[namespace] = make(map[int]string)
		}
		x.values[namespace][view] = value
	}
	now := x.valueOf(namespace)
	if now == "" {
		delete(x.values, namespace)
	}
	if now != before {
		x.apply(namespace, now)
	}
}

// valueOf returns the value by the newest view that has one.
func (x *clientLevels) valueOf(namespace string) (value string) {
	newest := 0
	for view, v := range x.values[namespace] {
		if view > newest {
			newest, value = view, v
		}
	}
	return value
}

// apply makes value the one of the namespace.
func (x *clientLevels) apply(namespace, value string) {
	l, ok := annotatedLevel(value)
	if ok {
		x.table.SetLevel(namespace, l)
		return
	}
	if value != "" {
		x.log.Warn("the annotation of a Namespace is not valid; --client-metrics applies to its pods", "namespace", namespace,
			"annotation", kubernetes.ClientMetricsAnnotation, "value", value, "fix", "set it to off, namespace or workload, or remove it")
	}
	x.table.ResetLevel(namespace)
}
