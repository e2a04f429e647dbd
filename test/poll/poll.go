// Package poll waits for conditions in tests. A test says what it waits for instead of
// sleeping for a time that a loaded machine may exceed. Conditions that an error describes,
// and those of other processes, are the job of test/peer.
package poll

import (
	"testing"
	"time"
)

// Until calls ok every two milliseconds until it returns true. After a minute it fails the
// test; the limit only ends a test that would otherwise hang. ok runs on the calling
// goroutine.
func Until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	limit := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(limit) {
			tb.Fatalf("gave up waiting for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
