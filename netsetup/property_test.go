// These tests use hook, name and nodeLocalComment, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/soak"
)

// history is one random history: our steps and a stranger's on one node.
type history struct {
	rng   *rand.Rand
	node  *fakeNode
	setup *Setup
	log   []string
}

// foreignStep does something to the node that is not our doing.
func (w *history) foreignStep() string {
	p := w.setup.Plan()
	links := []string{loopback, DefaultInterfaceName}
	link := links[w.rng.IntN(2)]
	own := p.Addresses[w.rng.IntN(len(p.Addresses))]
	other := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(w.rng.IntN(3))}), 32)
	// What is not there cannot be changed; that error is part of the game.
	switch w.rng.IntN(8) {
	case 7:
		over := [][]defaultInterface{nil, {hardware0}, {hardware0, hardware1}, {bridge}, {bridge, hardware1}}[w.rng.IntN(5)]
		w.node.setDefaults(over...)
		return fmt.Sprintf("default routes over %v", over)
	case 0, 1:
		return w.foreignRuleStep()
	case 2:
		return fmt.Sprintf("delete %v on %s: %v", own, link, w.node.DeleteAddr(Addr{Interface: link, Prefix: own}))
	case 3:
		return fmt.Sprintf("add %v on lo: %v", own, w.node.AddAddr(Addr{Interface: loopback, Prefix: own}))
	case 4:
		if w.rng.IntN(2) == 0 {
			return fmt.Sprintf("add foreign %v on %s: %v", other, link, w.node.AddAddr(Addr{Interface: link, Prefix: other}))
		}
		return fmt.Sprintf("delete foreign %v on %s: %v", other, link, w.node.DeleteAddr(Addr{Interface: link, Prefix: other}))
	case 5:
		return fmt.Sprintf("delete link: %v", w.node.DeleteInterface(DefaultInterfaceName))
	default:
		l, err := w.node.Interface(link)
		if err == nil {
			l.Up = false
			w.node.putInterface(l)
		}
		return fmt.Sprintf("set %s down: %v", link, err)
	}
}

// foreignRuleStep does something to the rules.
func (w *history) foreignRuleStep() string {
	program := []string{"iptables", "ip6tables"}[w.rng.IntN(2)]
	c := chains()[w.rng.IntN(len(chains()))]
	var command string
	switch w.rng.IntN(8) {
	case 0:
		command = "-F " + c.name
	case 1:
		command = "-A " + c.name + " -j DROP"
	case 2:
		command = "-I " + c.hook + " 1 " + jumpComment(w.setup.rules) + " -j " + c.name
	case 3:
		command = "-D " + c.hook + " " + jumpComment(w.setup.rules) + " -j " + c.name
	case 4:
		command = "-A " + c.hook + " -s 192.0.2.1 -j " + c.name
	case 5: // of NodeLocal DNSCache, or an agent before this one
		command = fmt.Sprintf("-A %s -d 169.254.20.10/32 -p udp -m comment %sskip conntrack\" -j NOTRACK", c.hook, nodeLocalComment)
	case 6:
		command = fmt.Sprintf("-A %s -d 192.0.2.1/32 -p udp -m comment %sskip conntrack\" -j NOTRACK", c.hook, nodeLocalComment)
	default:
		command = "-I " + c.hook + " 1 -j KUBE-SERVICES"
	}
	command = program + " -t " + c.table + " " + command
	return fmt.Sprintf("%s: %v", command, w.node.runIptables(command))
}

// ourStep is one of the four steps, one call in eight of it failing.
func (w *history) ourStep(t *testing.T) string {
	w.node.fail = func(string) error {
		if w.rng.IntN(8) == 0 {
			return errors.New("bad luck")
		}
		return nil
	}
	defer func() { w.node.fail = nil }()
	switch w.rng.IntN(8) {
	case 7:
		to := oldServers[:1+w.rng.IntN(len(oldServers))]
		return fmt.Sprintf("DivertHost %v: %v", to, w.setup.DivertHost(t.Context(), to))
	case 6:
		to := servers[:1+w.rng.IntN(len(servers))]
		return fmt.Sprintf("Divert %v: %v", to, w.setup.Divert(t.Context(), to))
	case 0:
		return fmt.Sprintf("Links: %v", w.setup.EnsureInterface(t.Context()))
	case 1:
		return fmt.Sprintf("Rules: %v", w.setup.EnsureRules(t.Context()))
	case 2:
		return fmt.Sprintf("Teardown: %v", w.setup.Teardown(0, nil))
	case 3:
		c := hostStack()
		w.setup.closeOwnerTable() // as the kernel does
		w.setup = newSetup(t, c, w.node)
		return "killed; new process"
	default:
		w.setup.recheck(t.Context())
		return "recheck"
	}
}

// foreignLines returns the lines of the dump that are not of the plan.
func (w *history) foreignLines() []string {
	p := w.setup.Plan()
	return slices.DeleteFunc(strings.Split(w.node.dump(), "\n"), func(line string) bool {
		for _, a := range p.Addresses {
			if strings.HasPrefix(line, fmt.Sprintf("addr %v on ", a)) {
				return true
			}
		}
		old := strings.Contains(line, nodeLocalComment) && strings.Contains(line, "169.254.20.10")
		return old || strings.Contains(line, "NODENS") || strings.HasPrefix(line, "link ") || strings.HasPrefix(line, "owner tables ")
	})
}

// TestAnyHistoryConverges plays random histories. None of our steps ever changes
// what is foreign; one undisturbed start brings the whole plan in place, once; one
// undisturbed teardown leaves nothing but what is foreign.
func TestAnyHistoryConverges(t *testing.T) {
	for seed := range soak.Choose[uint64](100, 300) {
		w := &history{rng: rand.New(rand.NewPCG(seed, 1)), node: newFakeNode()}
		w.node.noDummy = seed%2 == 0
		w.setup = newSetup(t, hostStack(), w.node)
		for range 5 + w.rng.IntN(25) {
			if w.rng.IntN(2) == 0 {
				w.log = append(w.log, w.foreignStep())
				continue
			}
			before := w.foreignLines()
			w.log = append(w.log, w.ourStep(t))
			if diff := cmp.Diff(before, w.foreignLines()); diff != "" {
				t.Fatalf("seed %d: the last step changed what is foreign:\n%s\n%s",
					seed, strings.Join(w.log, "\n"), diff)
			}
		}
		w.checkConverges(t, seed)
	}
}

func (w *history) checkConverges(t *testing.T, seed uint64) {
	t.Helper()
	history := fmt.Sprintf("seed %d:\n%s", seed, strings.Join(w.log, "\n"))
	before := w.foreignLines()
	apply(t, w.setup)
	wantComplete(t, w.node, w.setup, history)
	if err := w.setup.Teardown(0, nil); err != nil {
		t.Fatalf("%s\nTeardown: %v", history, err)
	}
	if diff := cmp.Diff(before, w.foreignLines()); diff != "" {
		t.Fatalf("%s\nstart and teardown changed what is foreign:\n%s", history, diff)
	}
	dump := w.node.dump()
	for _, mark := range []string{"NODENS", `169.254.20.10/32 -p udp -m comment`, "owner tables"} {
		if strings.Contains(dump, mark) {
			t.Fatalf("%s\nleft behind: %s in\n%s", history, mark, dump)
		}
	}
	for _, a := range w.setup.Plan().Addresses {
		if strings.Contains(dump, "addr "+a.String()) {
			t.Fatalf("%s\nleft behind: %v", history, a)
		}
	}
	if _, err := w.node.Interface(DefaultInterfaceName); err == nil && !strings.Contains(dump, "on "+DefaultInterfaceName) {
		t.Fatalf("%s\nleft behind: the link, with no address on it", history)
	}
}
