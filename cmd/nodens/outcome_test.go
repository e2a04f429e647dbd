package main

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// run executes the program with args, without its name.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return execute(ctx, newRootCommand(), args, stdout, stderr)
}

// outcome runs a command to its end in this process.
func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errors bytes.Buffer
	code = run(t.Context(), args, &out, &errors)
	return code, out.String(), errors.String()
}
