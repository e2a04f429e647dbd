package netsetup

// Inside the package: other tests inside use this helper.

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// unprivilegedEnv is set in processes that withoutCapability has started.
const unprivilegedEnv = "NETSETUP_TEST_UNPRIVILEGED"

// withoutNetAdmin is withoutCapability for NET_ADMIN.
func withoutNetAdmin(t *testing.T, body func()) {
	t.Helper()
	withoutCapability(t, unix.CAP_NET_ADMIN, body)
}

// withoutCapability runs body in a process like this one that lacks the capability, as do the
// programs that it starts. The process is this test binary again, told to run the calling test
// only, in the same network namespace.
func withoutCapability(t *testing.T, capability uintptr, body func()) {
	t.Helper()
	if os.Getenv(unprivilegedEnv) != "" {
		body()
		return
	}
	runtime.LockOSThread() // never unlocked: the thread, which has lost the capability, ends with the goroutine
	// Programs that root starts get all that the bounding set of the thread contains.
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
		t.Fatal("dropping a capability from the bounding set:", err)
	}
	rerun(t, 0, unprivilegedEnv+"=1")
}
