package otlp

import "time"

// SetInterval replaces the time for which a batch is collected. It is called before Run.
func (e *Exporter) SetInterval(d time.Duration) { e.interval = d }
