package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// openProgram opens a Program. It skips the test where that is not supported.
func openProgram(t testing.TB) *Program { return openWith(t, Options{}) }

// openWith opens a Program with options.
func openWith(t testing.TB, opts Options) *Program {
	t.Helper()
	p, err := Open(opts)
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

func TestOpen(t *testing.T) { openProgram(t) }
