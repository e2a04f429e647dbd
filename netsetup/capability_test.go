package netsetup

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// dropNetAdmin takes the capability NET_ADMIN from the calling thread and from
// the programs it starts, for good. The goroutine keeps the thread; it is a
// test's own process that calls this.
func dropNetAdmin(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	// Programs that root starts get back all that the bounding set holds.
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0); err != nil {
		t.Fatal("dropping NET_ADMIN from the bounding set:", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // NET_ADMIN is in the first 32 bits
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal("reading capabilities:", err)
	}
	const bit = uint32(1) << unix.CAP_NET_ADMIN
	data[0].Effective &^= bit
	data[0].Permitted &^= bit
	data[0].Inheritable &^= bit
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal("dropping NET_ADMIN:", err)
	}
}
