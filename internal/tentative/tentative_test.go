// This test uses find, which is not exported: the kernel's table can't be set from outside.

package tentative

import (
	"net/netip"
	"testing"
)

// table is a table of Linux 6.1.
const table = `fe80000000000000a8bbccfffe000001 02 40 20 80     eth0
fe80000000000000a8bbccfffe000001 03 40 20 c0     eth1
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000001 02 40 00 c0     eth0
fd000000000000000000000000000002 02 40 00 c8     eth0
fd000000000000000000000000000003 02 40 00 44     eth0
fd0000000000000000000000000000
`

// TestFind: the flags of the table are the state of an address.
func TestFind(t *testing.T) {
	for addr, want := range map[string]State{
		"fd00::1": Tentative, "fd00::2": Duplicate, "fd00::3": Assigned, "::1": Assigned, "fd00::9": Absent, "192.0.2.1": Absent,
		"fe80::a8bb:ccff:fe00:1%eth0": Assigned, "fe80::a8bb:ccff:fe00:1%eth1": Tentative, "fe80::a8bb:ccff:fe00:1%eth2": Absent,
	} {
		if got := find(table, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %d, want %d", addr, got, want)
		}
	}
}
