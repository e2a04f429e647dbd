package netsetup

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
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// inBareNamespace runs body in a process with a network namespace of its own, where lo is up.
func inBareNamespace(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(namespaceEnv) != "" {
		shell(t, "ip link set lo up")
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
	apart(t, namespaceEnv+"=1")
}

// podSpace makes a network namespace, of which path leads other programs there, that lasts
// until end is called, or the test ends.
func podSpace(t *testing.T) (path string, end func()) {
	t.Helper()
	cat := exec.Command("cat") // ends with its input, however this process ends
	cat.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	input, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		input.Close()
		_ = cat.Wait()
	})
	t.Cleanup(end)
	return fmt.Sprintf("/proc/%d/ns/net", cat.Process.Pid), end
}

// follower is a FollowPodLinks that runs, and what it has told.
type follower struct {
	mu       sync.Mutex
	followed map[int]string
	told     []string
	faults   []string
	look     PodInterfaceCheck // the last one
	looks    int
}

// startFollower starts one; hold, which may be nil, is called inside of seen.
func startFollower(t *testing.T, hold func(PodInterface)) *follower {
	t.Helper()
	f := &follower{followed: make(map[int]string)}
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
		if n := len(linkSockets(t)); n != 0 {
			t.Errorf("%d sockets are left", n)
		}
	})
	return f
}

// expect waits until told is what was told since the last call, in whatever order: a list
// that is read while things change may see what came later first. That no link is seen twice
// or gone twice is looked at where it is told.
func (f *follower) expect(t *testing.T, told ...string) {
	t.Helper()
	var got []string
	await(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		got = slices.Clone(f.told)
		return len(got) >= len(told)
	}, func() string { return fmt.Sprintf("told %q, want %q", got, told) })
	if d := cmp.Diff(slices.Sorted(slices.Values(told)), slices.Sorted(slices.Values(got))); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = nil
}

// settle waits until what is followed is what there is.
func (f *follower) settle(t *testing.T) {
	t.Helper()
	var want, got []int
	await(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		want, got = slices.Sorted(maps.Keys(veths(t))), slices.Sorted(maps.Keys(f.followed))
		return slices.Equal(want, got)
	}, func() string { return fmt.Sprintf("followed %v, there are %v", got, want) })
}

// await waits until met holds.
func await(t *testing.T, met func() bool, state func() string) {
	t.Helper()
	limit := time.Now().Add(time.Minute)
	for !met() {
		if time.Now().After(limit) {
			t.Fatal(state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// veths are the links that lead to other namespaces, by index, read in another way than the
// product's.
func veths(t *testing.T) map[int]string {
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

// linkSockets are the lines of this namespace's sockets that are told of links and filters.
func linkSockets(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 8 && f[1] == "0" && f[3] == "00000009" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestPodLinks has links come and go in each way that there is. Behind each step a link is
// made, so that what must not be told would have been told.
func TestPodLinks(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := podSpace(t)
		short, end := podSpace(t)
		words := strings.NewReplacer("POD", pod, "SHORT", short, "HERE", strconv.Itoa(os.Getpid()))
		shell(t, words.Replace("ip link add early type veth peer name eth0 netns POD; ip link add mark type veth peer name m netns POD"))
		f := startFollower(t, nil)
		f.expect(t, "seen early", "seen mark")
		step := func(what, do string, told ...string) {
			t.Helper()
			t.Log(what)
			shell(t, words.Replace("ip link del mark\n"+do+"\nip link add mark type veth peer name m netns POD"))
			f.expect(t, append(append([]string{"gone mark"}, told...), "seen mark")...)
			f.settle(t)
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
		f.expect(t, "gone podd")
	})
}

// TestPodLinksUplink: the veth by which the node reaches the world is not a pod's.
func TestPodLinksUplink(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := podSpace(t)
		const news = "ip link add both type veth peer name here; ip link del both"
		shell(t, strings.ReplaceAll(`ip link add eth0 type veth peer name port netns POD
			ip link set eth0 up; ip addr add 198.51.100.2/24 dev eth0; ip addr add fd00::2/64 dev eth0 nodad
			ip route add default via 198.51.100.1; ip link add poda type veth peer name poda0 netns POD`, "POD", pod))
		f := startFollower(t, nil)
		f.expect(t, "seen poda")
		shell(t, "ip route del default; "+news)
		f.expect(t, "seen eth0")
		shell(t, "ip -6 route add default via fd00::1; "+news)
		f.expect(t, "gone eth0")
	})
}

// TestPodLinksBegin makes a link once the list is read, and before anything else can be: its
// news are those that a follower which subscribed later would not get.
func TestPodLinksBegin(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := podSpace(t)
		shell(t, "ip link add poda type veth peer name poda0 netns "+pod)
		f := startFollower(t, func(l PodInterface) {
			if l.Name == "poda" {
				shell(t, "ip link add podb type veth peer name podb0 netns "+pod)
			}
		})
		f.expect(t, "seen poda", "seen podb")
	})
}

// TestPodLinksLost holds the reader up until the kernel has dropped news: what has come, what
// has gone, and what has gone and come again under the same index and name, all is told
// afterwards; what stayed is not.
func TestPodLinksLost(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := podSpace(t)
		shell(t, strings.ReplaceAll(`for name in stays goes again; do
			ip link add $name type veth peer name $name netns POD; done`, "POD", pod))
		held, freed := make(chan struct{}), make(chan struct{})
		free := sync.OnceFunc(func() { close(freed) })
		f := startFollower(t, func(l PodInterface) {
			if l.Name == "held" {
				close(held)
				<-freed
			}
		})
		t.Cleanup(free) // or the follower never ends
		f.expect(t, "seen stays", "seen goes", "seen again")
		shell(t, "ip link add held type veth peer name held netns "+pod)
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
		for dropped(t) == 0 {
			ipBatch(t, toggles.String())
		}
		shell(t, strings.ReplaceAll(`ip link del goes
			index=$(ip -o link show dev again | cut -d: -f1); ip link del again
			ip link add again index $index type veth peer name again netns POD`, "POD", pod))
		free()
		f.expect(t, told...)
		f.settle(t)
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

// dropped is how many news the kernel had no room for.
func dropped(t *testing.T) (n int) {
	t.Helper()
	for _, line := range linkSockets(t) {
		drops, err := strconv.Atoi(strings.Fields(line)[8])
		if err != nil {
			t.Fatal(err)
		}
		n += drops
	}
	return n
}

// TestPodLinksProperty does anything to links, in any order: in the end, the links that are
// followed are those that are there.
func TestPodLinksProperty(t *testing.T) {
	inBareNamespace(t, func(t *testing.T) {
		pod, _ := podSpace(t)
		seed := rand.Uint64()
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		f := startFollower(t, nil)
		shell(t, "ip link add bridge1 type bridge")
		for range 20 {
			var lines strings.Builder
			for range 1 + random.IntN(12) {
				lines.WriteString(anyChange(random))
				lines.WriteString("\n")
			}
			script := strings.NewReplacer("POD", pod, "HERE", strconv.Itoa(os.Getpid())).Replace(lines.String())
			// What is not there can't be changed: that is part of the game.
			_ = exec.Command("sh", "-c", script).Run()
			f.settle(t)
		}
	})
}

// anyChange is one change to a link.
func anyChange(random *rand.Rand) string {
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

// TestPodLinksMany: what is beyond the bound is left out, and no more.
func TestPodLinksMany(t *testing.T) {
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
			shell(t, "ip link add "+name+" type bridge")
			if here, err := HasCilium(); here != (name != "cilium") || err != nil {
				t.Errorf("with %s: %v, error %v", name, here, err)
			}
			shell(t, "ip link del "+name)
		}
		if here, err := HasCilium(); here || err != nil {
			t.Errorf("without a link: %v, error %v", here, err)
		}
	})
}
