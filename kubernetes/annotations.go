package kubernetes

import (
	"strings"
	"sync"
)

// ClientMetricsAnnotation is the annotation of a Namespace that chooses the metrics of its pods' queries.
// This package only reports its value.
const ClientMetricsAnnotation = "nodens.dev/client-metrics"

// maxAnnotation bounds a value, in bytes. Tenants choose it, and no valid one is as long.
const maxAnnotation = 64

// annotations reports the values of ClientMetricsAnnotation. It keeps the first 64 bytes of those that
// are not empty. It is safe for concurrent use. A nil annotations reports nothing.
type annotations struct {
	observe func(namespace, value string)

	mu     sync.Mutex
	values map[string]string // by namespace
	closed bool
}

// newAnnotations returns an annotations that calls observe; nil for nil.
func newAnnotations(observe func(namespace, value string)) *annotations {
	if observe == nil {
		return nil
	}
	return &annotations{observe: observe, values: make(map[string]string)}
}

// put records the value of a namespace, "" for none, and reports it if it is another one.
func (a *annotations) put(namespace, value string) {
	if a == nil {
		return
	}
	value = strings.ToValidUTF8(value[:min(len(value), maxAnnotation)], "")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.values[namespace] == value {
		return
	}
	namespace, value = strings.Clone(namespace), strings.Clone(value)
	if value == "" {
		delete(a.values, namespace)
	} else {
		a.values[namespace] = value
	}
	a.observe(namespace, value)
}

// close reports that no namespace has a value any more, and ignores later ones.
func (a *annotations) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for namespace := range a.values {
		a.observe(namespace, "")
	}
	clear(a.values)
}
