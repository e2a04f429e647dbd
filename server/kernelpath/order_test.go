package kernelpath_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/server/kernelpath"
)

// TestOrderNeedsNames: without the capability SYS_ADMIN, a position that depends on the name of another program is refused, and the
// others are not.
func TestOrderNeedsNames(t *testing.T) {
	dropCapability(t, unix.CAP_SYS_ADMIN)
	for _, o := range []kernelpath.Order{{}, {First: true}} {
		p, err := kernelpath.Open(kernelpath.Options{Order: o})
		if errors.Is(err, kernelpath.ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		p.Close()
	}
	for _, o := range []kernelpath.Order{{Before: "other"}, {After: "other"}} {
		p, err := kernelpath.Open(kernelpath.Options{Order: o})
		if err == nil {
			p.Close()
		}
		if !errors.Is(err, kernelpath.ErrUnsupported) || !strings.Contains(err.Error(), "capability SYS_ADMIN") {
			t.Errorf("%+v: %v, want an error that names the capability", o, err)
		}
	}
}

// dropCapability runs the rest of the test without a capability, on a thread that ends with the test.
func dropCapability(t *testing.T, capability int) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}
