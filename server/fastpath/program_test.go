package fastpath

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// open is a path for a test, which is skipped where there can be none.
func open(t testing.TB) *Program {
	t.Helper()
	p, err := Open(Options{})
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		t.Fatalf("%-.20000v", refused)
	}
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestOpen(t *testing.T) { open(t) }
