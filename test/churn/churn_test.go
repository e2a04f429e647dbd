package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/soak"
)

// TestChurn plays one round. `make soak` runs the command for longer.
func TestChurn(t *testing.T) {
	if !inNamespace() {
		var out bytes.Buffer
		err := runInNamespace(t.Context(), &out, &out, "-test.run=^TestChurn$", "-test.v", "-test.count=1", "-test.timeout=0")
		if errors.Is(err, errNoNamespace) {
			t.Skip(err)
		}
		if t.Log(out.String()); err != nil {
			t.Error(err)
		}
		return
	}
	p := plan{
		time: time.Hour, rounds: soak.Choose(1, 6), seed: 1, rate: 100, steady: 300 * time.Millisecond,
		clients: 2, changes: 6, dir: t.TempDir(),
	}
	r, err := p.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.judge()
	t.Logf("\n%s", r)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	for _, p := range r.phases {
		if p.asked == 0 {
			t.Errorf("no query was asked in the phase %s", p.name)
		}
	}
}

// TestOver: a run ends by its time or its rounds, and 0 rounds are no limit.
func TestOver(t *testing.T) {
	for _, tt := range []struct {
		rounds, round int
		took          time.Duration
		want          bool
	}{
		{0, 0, time.Second, false}, {0, 0, time.Hour, false}, {0, 1, time.Second, false}, {0, 1, time.Hour, true}, {2, 1, time.Second, false},
		{2, 2, time.Second, true},
	} {
		if got := (plan{time: time.Minute, rounds: tt.rounds}).over(tt.round, tt.took); got != tt.want {
			t.Errorf("round %d of %d after %s: over %v, want %v", tt.round, tt.rounds, tt.took, got, tt.want)
		}
	}
}
