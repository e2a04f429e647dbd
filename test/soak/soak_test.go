package soak_test

import (
	"testing"

	"github.com/nodens-dns/nodens/test/soak"
)

func TestChoose(t *testing.T) {
	for value, want := range map[string]int{"": 1, "1": 20} {
		t.Setenv(soak.Variable, value)
		if got := soak.Choose(1, 20); got != want || soak.Enabled() != (want == 20) {
			t.Errorf("with %s=%q: %d rounds, want %d", soak.Variable, value, got, want)
		}
	}
}
