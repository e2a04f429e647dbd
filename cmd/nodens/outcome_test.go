package main

import (
	"bytes"
	"testing"
)

// outcome runs a command to its end in this process.
func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errors bytes.Buffer
	code = run(t.Context(), args, &out, &errors)
	return code, out.String(), errors.String()
}
