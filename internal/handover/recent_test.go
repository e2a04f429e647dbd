// This test uses helloHead and startFakePredecessor, which are not exported.

package handover

import (
	"context"
	"slices"
	"testing"
	"time"
)

// TestRecent: a successor learns when the last handovers were, of no more than 16, and nothing of an agent that does
// not say so.
func TestRecent(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	var many []int64
	for i := range 2 * maxRecent {
		many = append(many, at.Unix()+int64(i))
	}
	for _, c := range []struct {
		name string
		sent []int64
		want int
	}{{"none", nil, 0}, {"some", many[:2], 2}, {"too many", many, maxRecent}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			startFakePredecessor(t, dir, helloHead{Min: 1, Max: 1, State: stateOK, Recent: c.sent}, "", func(*fakePredecessor) {})
			p, err := Connect(context.Background(), dir, Config{})
			if err != nil || p == nil {
				t.Fatal(p, err)
			}
			defer p.Close()
			got := p.Recent()
			if len(got) != c.want || c.want > 0 && !slices.ContainsFunc(got, at.Equal) {
				t.Errorf("got %v, want %d", got, c.want)
			}
		})
	}
	h := &Server{config: Config{Recent: func() []time.Time { return []time.Time{at} }}}
	if got := h.helloHead(stateOK).Recent; !slices.Equal(got, []int64{at.Unix()}) {
		t.Errorf("a server says %v", got)
	}
}
