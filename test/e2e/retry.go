package main

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// retryFailed calls run for each part with a failed check, in a new cluster and without parts beside it. What run adds to
// the results takes the place of the first run's, whose failures stay in s.firstTries.
func (s *suite) retryFailed(ctx context.Context, planned []part, beside *suite, run func(context.Context, part)) {
	for _, p := range planned {
		ofPart := func(r result) bool { return r.part == p.name }
		first := slices.DeleteFunc(slices.Clone(s.results), func(r result) bool { return !ofPart(r) || r.err == nil })
		if len(first) == 0 || ctx.Err() != nil {
			continue
		}
		for _, one := range []*suite{s, beside} {
			if err := one.stopCluster(); err != nil {
				s.leftovers = append(s.leftovers, err.Error())
			}
		}
		fmt.Printf("once more, alone: %s\n", p.name)
		s.firstTries = append(s.firstTries, first...)
		s.results = slices.DeleteFunc(s.results, ofPart)
		run(ctx, p)
	}
}

// printFailures prints the checks that failed, also those that passed when they were tried again, so that the end of
// a long log has them.
func (s *suite) printFailures(w io.Writer) {
	if len(s.firstTries) > 0 {
		fmt.Fprintln(w, "\nFailed, and tried again:")
	}
	for _, r := range s.firstTries {
		r.print(w)
	}
	failed := slices.DeleteFunc(slices.Clone(s.results), func(r result) bool { return r.err == nil })
	if len(failed) > 0 {
		fmt.Fprintln(w, "\nFailed:")
	}
	for _, r := range failed {
		r.print(w)
	}
}
