// Package check has the two checks that nearly every test makes: that there is no error, which ends it, and that two values
// are equal, which it goes on after. Both say the line of the caller.
package check

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// NoError ends the test if err is not nil.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Equal fails the test, and goes on, if want and got differ. What is said about them has the format of [fmt.Sprintf].
func Equal(tb testing.TB, want, got any, format string, args ...any) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), diff)
	}
}
