// These tests use interfaces, maxPodInterfaces and podInterface, which are not exported.

package netsetup

// Inside the package: the tests read messages and limits that are not exported.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// inBareNamespace runs body in a process with a network namespace of its own, where lo is up.
func inBareNamespace(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(namespaceEnv) != "" {
		runLines(t, "ip link set lo up")
		body(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	for _, program := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs iproute2 and util-linux:", err)
		}
	}
	t.Parallel()
	rerunInNetns(t, namespaceEnv+"=1")
}

// newPodNetns makes a network namespace, of which path leads other programs there, that lasts
// until end is called, or the test ends.
func newPodNetns(t *testing.T) (path string, end func()) {
	t.Helper()
	pod := newNetns(t)
	return pod.path, sync.OnceFunc(func() { pod.file.Close() })
}

// podRecorder is a FollowPodLinks that runs, and what it has told.
type podRecorder struct {
	mu       sync.Mutex
	followed map[int]string
	told     []string
	faults   []string
	look     PodInterfaceCheck // the last one
	looks    int
}

// startPodRecorder starts one; hold, which may be nil, is called inside of seen.
func startPodRecorder(t *testing.T, hold func(PodInterface)) *podRecorder {
	t.Helper()
	f := &podRecorder{followed: make(map[int]string)}
	tell := func(what string, l PodInterface, wrong bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told = append(f.told, what+" "+l.Name)
		if wrong {
			f.faults = append(f.faults, fmt.Sprintf("%s %v though it was told before", what, l))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- WatchPodInterfaces(ctx, PodInterfaceObserver{Added: func(l PodInterface) {
			_, known := f.followed[l.Index]
			tell("seen", l, known)
			f.mu.Lock()
			f.followed[l.Index] = l.Name
			f.mu.Unlock()
			if hold != nil {
				hold(l)
			}
		}, Removed: func(l PodInterface) {
			_, known := f.followed[l.Index]
			tell("gone", l, !known)
			f.mu.Lock()
			delete(f.followed, l.Index)
			f.mu.Unlock()
		}, Checked: func(look PodInterfaceCheck) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.look = look
			f.looks++
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the follower: %v", err)
		}
		for _, fault := range f.faults {
			t.Error(fault)
		}
		if n := len(listNetlinkSockets(t)); n != 0 {
			t.Errorf("%d sockets are left", n)
		}
	})
	return f
}

// wantEvents waits until told is what was told since the last call, in whatever order: a list
// that is read while things change may see what came later first. That no link is seen twice
// or gone twice is looked at where it is told.
func (f *podRecorder) wantEvents(t *testing.T, told ...string) {
	t.Helper()
	var got []string
	waitFor(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		got = slices.Clone(f.told)
		return len(got) >= len(told)
	}, func() string { return fmt.Sprintf("told %q, want %q", got, told) })
	check.Equal(t, slices.Sorted(slices.Values(told)), slices.Sorted(slices.Values(got)), "told")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = nil
}

// waitForList waits until what is followed is what there is.
func (f *podRecorder) waitForList(t *testing.T) {
	t.Helper()
	var want, got []int
	waitFor(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		want, got = slices.Sorted(maps.Keys(listVeths(t))), slices.Sorted(maps.Keys(f.followed))
		return slices.Equal(want, got)
	}, func() string { return fmt.Sprintf("followed %v, there are %v", got, want) })
}

// waitFor waits until met holds.
func waitFor(t *testing.T, met func() bool, state func() string) {
	t.Helper()
	limit := time.Now().Add(time.Minute)
	for !met() {
		if time.Now().After(limit) {
			t.Fatal(state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// listVeths are the links that lead to other namespaces, by index, read in another way than the
// product's.
func listVeths(t *testing.T) map[int]string {
	t.Helper()
	links, err := netlink.LinkList()
	for err != nil {
		links, err = netlink.LinkList() // changed while it was read
	}
	found := make(map[int]string)
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().NetNsID >= 0 {
			found[l.Attrs().Index] = l.Attrs().Name
		}
	}
	return found
}

// listNetlinkSockets are the lines of this namespace's sockets that are told of links and filters.
func listNetlinkSockets(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/netlink")
	check.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 8 && f[1] == "0" && f[3] == "00000009" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestPodInterfaces has links come and go in each way that there is. Behind each step a link is
// made, so that what must not be told would have been told.
func TestPodInterfaces(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		short, end := newPodNetns(t)
		words := strings.NewReplacer("POD", pod, "SHORT", short, "HERE", strconv.Itoa(os.Getpid()))
		runLines(t, words.Replace("ip link add early type veth peer name eth0 netns POD; ip link add mark type veth peer name m netns POD"))
		f := startPodRecorder(t, nil)
		f.wantEvents(t, "seen early", "seen mark")
		step := func(what, do string, told ...string) {
			t.Helper()
			t.Log(what)
			runLines(t, words.Replace("ip link del mark\n"+do+"\nip link add mark type veth peer name m netns POD"))
			f.wantEvents(t, append(append([]string{"gone mark"}, told...), "seen mark")...)
			f.waitForList(t)
		}
		step("made with its other end there", "ip link add poda type veth peer name poda0 netns POD", "seen poda")
		step("made there, as most plugins do", "nsenter --net=POD ip link add podb0 type veth peer name podb netns HERE", "seen podb")
		step("deleted there", "nsenter --net=POD ip link del podb0", "gone podb")
		step("both ends here", "ip link add podc type veth peer name podc0; ip link set podc up")
		step("the other end is moved there", "ip link set podc0 netns POD", "seen podc")
		step("and back", "nsenter --net=POD ip link set podc0 netns HERE", "gone podc")
		step("deleted, both", "ip link del podc")
		step("raised, a bridge's port, and free again", `ip link add bridge1 type bridge; ip link set poda up
			ip link set poda master bridge1; ip link set poda nomaster; ip link set poda down`)
		step("renamed", "ip link set poda name anew")
		step("moved there", "ip link set anew netns POD", "gone anew")
		step("and back", "nsenter --net=POD ip link set anew netns HERE", "seen anew")
		step("other kinds", "ip link add dum type bridge; ip link del dum")
		step("an index is used again", `index=$(ip -o link show dev early | cut -d: -f1); ip link del early
			ip link add early index $index type veth peer name eth0 netns POD`, "gone early", "seen early")
		step("its namespace ends", "ip link add podd type veth peer name podd0 netns SHORT", "seen podd")
		end()
		f.wantEvents(t, "gone podd")
	})
}

// TestPodInterfacesDefaultRoute: the veth by which the node reaches the world is not a pod's.
func TestPodInterfacesDefaultRoute(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		const news = "ip link add both type veth peer name here; ip link del both"
		runLines(t, strings.ReplaceAll(`ip link add eth0 type veth peer name port netns POD
			ip link set eth0 up; ip addr add 198.51.100.2/24 dev eth0; ip addr add fd00::2/64 dev eth0 nodad
			ip route add default via 198.51.100.1; ip link add poda type veth peer name poda0 netns POD`, "POD", pod))
		f := startPodRecorder(t, nil)
		f.wantEvents(t, "seen poda")
		runLines(t, "ip route del default; "+news)
		f.wantEvents(t, "seen eth0")
		runLines(t, "ip -6 route add default via fd00::1; "+news)
		f.wantEvents(t, "gone eth0")
	})
}

// TestPodInterfacesExistAtStart makes a link once the list is read, and before anything else can be: its
// news are those that a follower which subscribed later would not get.
func TestPodInterfacesExistAtStart(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		runLines(t, "ip link add poda type veth peer name poda0 netns "+pod)
		f := startPodRecorder(t, func(l PodInterface) {
			if l.Name == "poda" {
				runLines(t, "ip link add podb type veth peer name podb0 netns "+pod)
			}
		})
		f.wantEvents(t, "seen poda", "seen podb")
	})
}

// TestPodInterfacesDroppedEvents holds the reader up until the kernel has dropped news: what has come, what
// has gone, and what has gone and come again under the same index and name, all is told
// afterwards; what stayed is not.
func TestPodInterfacesDroppedEvents(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		runLines(t, strings.ReplaceAll(`for name in stays goes again; do
			ip link add $name type veth peer name $name netns POD; done`, "POD", pod))
		held, freed := make(chan struct{}), make(chan struct{})
		free := sync.OnceFunc(func() { close(freed) })
		f := startPodRecorder(t, func(l PodInterface) {
			if l.Name == "held" {
				close(held)
				<-freed
			}
		})
		t.Cleanup(free) // or the follower never ends
		f.wantEvents(t, "seen stays", "seen goes", "seen again")
		runLines(t, "ip link add held type veth peer name held netns "+pod)
		<-held
		told := []string{"seen held", "gone goes", "gone again", "seen again"}
		var batch strings.Builder
		for i := range 300 {
			fmt.Fprintf(&batch, "link add v%d type veth peer name v%d netns %s\n", i, i, pod)
			told = append(told, fmt.Sprintf("seen v%d", i))
		}
		var toggles strings.Builder
		for i := range 300 {
			fmt.Fprintf(&toggles, "link set v%d up\nlink set v%d down\n", i, i)
		}
		ipBatch(t, batch.String())
		for droppedEvents(t) == 0 {
			ipBatch(t, toggles.String())
		}
		runLines(t, strings.ReplaceAll(`ip link del goes
			index=$(ip -o link show dev again | cut -d: -f1); ip link del again
			ip link add again index $index type veth peer name again netns POD`, "POD", pod))
		free()
		f.wantEvents(t, told...)
		f.waitForList(t)
	})
}

// ipBatch runs lines of ip.
func ipBatch(t *testing.T, lines string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(lines)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// droppedEvents is how many news the kernel had no room for.
func droppedEvents(t *testing.T) (n int) {
	t.Helper()
	for _, line := range listNetlinkSockets(t) {
		drops, err := strconv.Atoi(strings.Fields(line)[8])
		check.NoError(t, err)
		n += drops
	}
	return n
}

// TestPodInterfacesRandomChanges does anything to links, in any order: in the end, the links that are
// followed are those that are there.
func TestPodInterfacesRandomChanges(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := newPodNetns(t)
		seed := rand.Uint64()
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		f := startPodRecorder(t, nil)
		runLines(t, "ip link add bridge1 type bridge")
		for range soak.Choose(8, 20) {
			var lines strings.Builder
			for range 1 + random.IntN(12) {
				lines.WriteString(randomChange(random))
				lines.WriteString("\n")
			}
			script := strings.NewReplacer("POD", pod, "HERE", strconv.Itoa(os.Getpid())).Replace(lines.String())
			// What is not there can't be changed: that is part of the game.
			_ = exec.Command("sh", "-c", script).Run()
			f.waitForList(t)
		}
	})
}

// randomChange is one change to a link.
func randomChange(random *rand.Rand) string {
	x, y := 'a'+rune(random.IntN(4)), 'a'+rune(random.IntN(4))
	changes := []string{
		"ip link add X type veth peer name X0 netns POD",
		"ip link add X type veth peer name X0",
		"nsenter --net=POD ip link add X0 type veth peer name X netns HERE",
		"ip link del X",
		"nsenter --net=POD ip link del X0",
		"ip link set X netns POD",
		"ip link set X0 netns POD",
		"nsenter --net=POD ip link set X netns HERE",
		"nsenter --net=POD ip link set X0 netns HERE",
		"ip link set X name Y",
		"ip link set X up",
		"nsenter --net=POD ip link set X0 up",
		"ip link set X master bridge1",
		"i=$(ip -o link show dev X | cut -d: -f1); ip link del X; ip link add Y index $i type veth peer name Y0 netns POD",
	}
	return strings.NewReplacer("X", "pod"+string(x), "Y", "pod"+string(y)).Replace(changes[random.IntN(len(changes))])
}

// TestPodInterfacesLimit: what is beyond the bound is left out, and no more.
func TestPodInterfacesLimit(t *testing.T) {
	f := podWatcher{interfaces: make(map[int]podInterface), PodInterfaceObserver: PodInterfaceObserver{Added: func(l PodInterface) { t.Errorf("%v is seen", l) }}}
	for i := range maxPodInterfaces {
		f.interfaces[-i] = podInterface{}
	}
	f.addNew(map[int]podInterface{1: {}, 0: {}})
	if len(f.interfaces) != maxPodInterfaces {
		t.Errorf("%d are known, want %d", len(f.interfaces), maxPodInterfaces)
	}
}

// TestCilium: its links tell.
func TestCilium(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		for _, name := range []string{"cilium", "cilium_host", "cilium_net"} {
			runLines(t, "ip link add "+name+" type bridge")
			if here, err := HasCilium(); here != (name != "cilium") || err != nil {
				t.Errorf("with %s: %v, error %v", name, here, err)
			}
			runLines(t, "ip link del "+name)
		}
		if here, err := HasCilium(); here || err != nil {
			t.Errorf("without a link: %v, error %v", here, err)
		}
	})
}
