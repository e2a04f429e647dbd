package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestRetryFailed: of three parts only those with a failed check run again, each once; the second run counts, and the
// end of the output has the failures of both.
func TestRetryFailed(t *testing.T) {
	broken := errors.New("broken")
	s := suite{results: []result{
		{part: "good", name: "a"},
		{part: "flaky", name: "b", err: broken}, {part: "flaky", name: "c"},
		{part: "bad", name: "d", err: broken},
	}}
	var again []string
	s.retryFailed(t.Context(), []part{{name: "good"}, {name: "flaky"}, {name: "bad"}}, new(suite), func(_ context.Context, p part) {
		again = append(again, p.name)
		if p.name == "flaky" {
			s.results = append(s.results, result{part: "flaky", name: "b"}, result{part: "flaky", name: "c"})
		} else {
			s.results = append(s.results, result{part: "bad", name: "d", err: errors.New("still broken")})
		}
	})
	if want := []string{"flaky", "bad"}; !slices.Equal(again, want) {
		t.Errorf("ran %v again, want %v", again, want)
	}
	var b strings.Builder
	if err := s.printSummary(&b); err == nil || err.Error() != "1 of 4 checks failed" {
		t.Errorf("the summary's error is %v", err)
	}
	_, end, _ := strings.Cut(b.String(), "Failed, and tried again:\n")
	tried, failed, _ := strings.Cut(end, "Failed:\n")
	if !strings.Contains(tried, " b ") || !strings.Contains(tried, " d ") || strings.Contains(tried, "still") {
		t.Errorf("tried again: %s", tried)
	}
	if strings.Contains(failed, " b ") || !strings.Contains(failed, "still broken") {
		t.Errorf("failed: %s", failed)
	}
}
