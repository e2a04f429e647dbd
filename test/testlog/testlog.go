// Package testlog collects the log of an agent, or of a part of it, that runs in the test's
// process. The test reads the log while goroutines still write to it.
package testlog

import (
	"bytes"
	"sync"
)

// Buffer is a log that can be read while it is written. It is safe for concurrent use; the
// zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer]. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns everything written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
