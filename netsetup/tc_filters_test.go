// These tests use handleFilter, checkedAt and checkAt, which are not exported.

package netsetup

// Inside the package: the tests use the recorder of pod_interfaces_test.go.

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// wantFiltered waits until exactly these links have filters, as far as looks tell.
func (f *podRecorder) wantFiltered(t *testing.T, want ...string) {
	t.Helper()
	var look PodInterfaceCheck
	var got []string
	waitFor(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		look, got = f.look, nil
		for index, is := range look.Filtered {
			if is {
				got = append(got, f.followed[index])
			}
		}
		slices.Sort(got)
		return f.looks > 0 && look.Err == nil && !look.Incomplete && slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("links with filters %q, want %q; %+v", got, want, look) })
}

// waitForCheck waits for two looks more: the second has begun after the call.
func (f *podRecorder) waitForCheck(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	from := f.looks
	f.mu.Unlock()
	waitFor(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.looks >= from+2
	}, func() string { return "no look comes" })
}

// TestPodInterfaceFilters: looks say which links have filters, at whichever place; qdiscs alone don't
// count, nor do filters of links that are no pod's.
func TestPodInterfaceFilters(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, -1), asm.Return(), // leaves the packet to others
		}})
		if err != nil {
			t.Skip("a program for a filter: ", err)
		}
		defer program.Close()
		for _, name := range []string{"egress", "htb", "in", "ingress", "plain"} {
			runLines(t, fmt.Sprintf("ip link add %s type veth peer name p%s netns %s", name, name, pod))
		}
		runLines(t, "ip link add other type bridge")
		f := startPodRecorder(t, nil)
		f.wantEvents(t, "seen egress", "seen htb", "seen in", "seen ingress", "seen plain")
		f.wantFiltered(t)
		runLines(t, `tc qdisc add dev in clsact; tc qdisc add dev egress clsact; tc qdisc add dev other clsact
			tc qdisc add dev ingress ingress; tc qdisc add dev htb root handle 1: htb`)
		f.waitForCheck(t)
		f.wantFiltered(t)
		parents := map[string]uint32{
			"in": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS, "other": netlink.HANDLE_MIN_EGRESS,
			"ingress": netlink.MakeHandle(0xffff, 0), "htb": netlink.MakeHandle(1, 0),
		}
		for _, name := range slices.Sorted(maps.Keys(parents)) {
			link, err := netlink.LinkByName(name)
			check.NoError(t, err)
			err = netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: parents[name], Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
				Fd:          program.FD(), Name: "policy", DirectAction: true,
			})
			if err != nil {
				t.Fatal(name, err)
			}
		}
		f.wantFiltered(t, "egress", "htb", "in", "ingress")
		runLines(t, "tc filter del dev in ingress; tc filter del dev egress egress")
		f.wantFiltered(t, "htb", "ingress")
		runLines(t, "tc qdisc del dev htb root; tc qdisc del dev ingress ingress")
		f.wantFiltered(t)
	})
}

// TestPodInterfaceChecks: filters that change all the time have the links looked at no more often than
// ten times a second, and otherwise each second.
func TestPodInterfaceChecks(t *testing.T) {
	f := podWatcher{interfaces: map[int]podInterface{7: {}}, PodInterfaceObserver: PodInterfaceObserver{Checked: func(PodInterfaceCheck) {}}}
	f.check()
	if got := f.checkAt.Sub(f.checkedAt); got != checkInterval {
		t.Errorf("the next look comes %v after this one", got)
	}
	message := func(index byte) []byte { return append([]byte{0, 0, 0, 0, index, 0, 0, 0}, make([]byte, 12)...) }
	f.handleFilter(message(8))
	f.handleFilter(message(7)[:19])
	if got := f.checkAt.Sub(f.checkedAt); got != checkInterval {
		t.Errorf("with news of another link the next look comes %v after this one", got)
	}
	f.handleFilter(message(7))
	f.handleFilter(message(7))
	if got := f.checkAt.Sub(f.checkedAt); got != minCheckInterval {
		t.Errorf("with news the next look comes %v after this one", got)
	}
}
