package main

import (
	"bytes"
	"context"
	"io"
	"strings"
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

// hasTexts reports an error for each of texts that is not in out.
func hasTexts(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in:\n%s", text, out)
		}
	}
}

// lacksTexts reports an error for each of texts that is in out.
func lacksTexts(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(out, text) {
			t.Errorf("%q is in:\n%s", text, out)
		}
	}
}
