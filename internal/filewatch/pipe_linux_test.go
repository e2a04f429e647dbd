package filewatch_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/filewatch"
)

// TestPipe: a pipe without a writer is refused, as opening it would wait for one, and so is a device without an end.
func TestPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		if _, err := filewatch.Open(path); !errors.Is(err, filewatch.ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
