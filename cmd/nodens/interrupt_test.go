package main

// Inside the package: the commands are not exported.

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// TestInterrupted: a signal ends a command that waits for its input.
func TestInterrupted(t *testing.T) {
	for _, args := range [][]string{{"check", "-"}, {"migrate", "--image", "nodens:1", "-f", "-"}, {"policy", "--draft", "-"}} {
		ctx, cancel := context.WithCancel(t.Context())
		stdin, silent := io.Pipe()
		var stdout, stderr bytes.Buffer
		root := newRootCommand()
		root.SetIn(reading{stdin, cancel})
		if code := execute(ctx, root, args, &stdout, &stderr); code != exitError || stderr.String() != "nodens: interrupted\n" || stdout.Len() > 0 {
			t.Errorf("%q ends with %d, %q and %q", args, code, &stdout, &stderr)
		}
		silent.Close()
	}
}

// reading calls began before it reads.
type reading struct {
	io.Reader
	began func()
}

func (r reading) Read(p []byte) (int, error) {
	r.began()
	return r.Reader.Read(p)
}
