// This test adds up the memory behind a Windows, which is not exported.

package sketch

import (
	"fmt"
	"testing"
	"time"
	"unsafe"
)

// TestMemory: six Windows take 200 KiB, with as many keys as they count in all windows.
func TestMemory(t *testing.T) {
	w := NewWindows(0)
	for at := range 3599 {
		names := 2
		if at >= 3540 {
			names = 2 * MaxKeys
		}
		for n := range names {
			w.Add(time.Duration(at)*time.Second, fmt.Appendf(nil, "name-%d.example.com.svc.cluster.local", at*names+n), uint64(at))
		}
	}
	size := unsafe.Sizeof(*w) + unsafe.Sizeof(*w.current)
	for _, l := range append(w.sums[Minute:], w.before[:]...) {
		if len(l.data) < maxListBytes-64 {
			t.Errorf("a list has only %d bytes", len(l.data))
		}
		size += uintptr(cap(l.data))
	}
	if 6*size > 200<<10 {
		t.Errorf("six Windows take %d bytes", 6*size)
	}
}
