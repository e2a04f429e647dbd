// Package soak tells the two forms of the test run apart. `make test` runs every test once,
// with few rounds; `make soak` runs the same tests with long seeds, rounds and counts. A
// test has one body for both and asks this package only for its numbers, so that the short
// form checks every property of the long one.
package soak

import "os"

// Variable is the environment variable that selects the long form. Any value but the empty
// one does.
const Variable = "NODENS_SOAK"

// Enabled reports whether tests run in the long form.
func Enabled() bool { return os.Getenv(Variable) != "" }

// Choose returns long in the long form, and otherwise usual.
func Choose[T any](usual, long T) T {
	if Enabled() {
		return long
	}
	return usual
}
