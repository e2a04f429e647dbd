// Internal: builds headers of saved views.

package kubernetes

import (
	"testing"
	"time"
)

// TestSavedHeadCheck checks which headers a view can have.
func TestSavedHeadCheck(t *testing.T) {
	at := func(year int, month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	good := savedHead{Level: levelAll, At: at(2026, time.January, 1)}
	for _, tt := range []struct {
		name   string
		change func(*savedHead)
		ok     bool
	}{
		{"the highest level", func(*savedHead) {}, true},
		{"the lowest level", func(h *savedHead) { h.Level = 0 }, true},
		{"a level beyond", func(h *savedHead) { h.Level = levelAll + 1 }, false},
		{"the first time", func(h *savedHead) { h.At = at(1970, time.January, 1) }, true},
		{"a time before", func(h *savedHead) { h.At = at(1969, time.December, 31) }, false},
		{"the last time", func(h *savedHead) { h.At = at(2261, time.December, 31) }, true},
		{"a time after", func(h *savedHead) { h.At = at(2262, time.January, 1) }, false},
		{"no time", func(h *savedHead) { h.At = time.Time{} }, false},
	} {
		h := good
		tt.change(&h)
		if err := h.check(); (err == nil) != tt.ok {
			t.Errorf("%s: error %v, want ok %v", tt.name, err, tt.ok)
		}
	}
}
