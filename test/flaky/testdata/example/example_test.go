// Package example has tests that fail sometimes.
package example

import (
	"testing"
	"time"
)

// runs counts the runs of each test in this process.
var runs = make(map[string]int)

// everyNth reports whether the test runs for the nth time since it last did.
func everyNth(t *testing.T, n int) bool {
	runs[t.Name()]++
	return runs[t.Name()]%n == 0
}

func TestPasses(*testing.T) {}

// TestWaits takes long enough for a time of its own in the output.
func TestWaits(*testing.T) { time.Sleep(20 * time.Millisecond) }

func TestSkips(t *testing.T) { t.Skip("always") }

func TestSometimes(t *testing.T) {
	if everyNth(t, 2) {
		t.Errorf("run %d", runs[t.Name()])
	}
}

func TestParts(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			if name == "b" && everyNth(t, 3) {
				t.Error("b is wrong")
			}
		})
	}
}

func TestPanics(t *testing.T) {
	if everyNth(t, 3) {
		panic("boom")
	}
}

func TestAfterPanic(*testing.T) {}

func FuzzNothing(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(*testing.T, int) {})
}
