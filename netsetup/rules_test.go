// These tests use recheck and kernelNode, which are not exported.

package netsetup

// Inside the package: the tests use kernelNode and helpers that are not exported.

import (
	gocmp "cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

func TestKernelRules(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		c := dualStack()
		c.Addresses = c.Addresses[:1]
		apply(t, newSetup(t, c, withoutOwnerTable{&kernelNode{}}))
		const want = `*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
:NODENS-INPUT -
:NODENS-OUTPUT -
-A INPUT -m comment --comment "nodens: DNS of this node" -j NODENS-INPUT
-A OUTPUT -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
-A NODENS-INPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j ACCEPT
-A NODENS-INPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:NODENS-DIVERT -
:NODENS-OUTPUT -
:NODENS-POSTROUTING -
:NODENS-PREROUTING -
-A PREROUTING -m comment --comment "nodens: DNS of this node" -j NODENS-PREROUTING
-A OUTPUT -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
-A POSTROUTING -m comment --comment "nodens: DNS of this node" -j NODENS-POSTROUTING
-A NODENS-DIVERT -p udp -m udp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.1.1.1:53
-A NODENS-DIVERT -p udp -m udp -j DNAT --to-destination 10.1.1.2:5353
-A NODENS-DIVERT -p tcp -m tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.1.1.1:53
-A NODENS-DIVERT -p tcp -m tcp -j DNAT --to-destination 10.1.1.2:5353
-A NODENS-OUTPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NODENS-DIVERT
-A NODENS-OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NODENS-DIVERT
-A NODENS-POSTROUTING -s 169.254.20.10/32 ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE
-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NODENS-DIVERT
-A NODENS-PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NODENS-DIVERT
COMMIT
*raw
:PREROUTING ACCEPT
:OUTPUT ACCEPT
:NODENS-OUTPUT -
:NODENS-PREROUTING -
-A PREROUTING -m comment --comment "nodens: DNS of this node" -j NODENS-PREROUTING
-A OUTPUT -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NOTRACK
-A NODENS-OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NOTRACK
-A NODENS-OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 8080 -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 8080 -j NOTRACK
-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -m socket --nowildcard -j NOTRACK
COMMIT
`
		got := regexp.MustCompile(` \([0-9a-f]{8}\)"`).ReplaceAllString(sortedTables(dumpRules(t, IPv4)), `"`)
		check.Equal(t, want, got, "iptables-save")
		if got := dumpRules(t, IPv6); strings.Contains(got, "-A ") {
			t.Errorf("an IPv4 plan made IPv6 rules:\n%s", got)
		}
	})
}

// sortedTables puts the tables and chains of iptables-save into one order; the two builds
// have two.
func sortedTables(saved string) string {
	var tables []string
	for _, table := range strings.SplitAfter(saved, "COMMIT\n") {
		lines := strings.SplitAfter(table, "\n")
		if len(lines) < 3 {
			continue
		}
		rules := lines[1 : len(lines)-2]
		chain := func(line string) (kind int, name string) {
			words := strings.Fields(line)
			own := strings.Contains(line, ":NODENS") || strings.Contains(line, "-A NODENS")
			switch {
			case line[0] == ':' && !own:
				return 0, ""
			case line[0] == ':':
				return 1, words[0]
			case !own:
				return 2, ""
			}
			return 3, words[1]
		}
		slices.SortStableFunc(rules, func(a, b string) int {
			k, n := chain(a)
			l, m := chain(b)
			return gocmp.Or(k-l, strings.Compare(n, m))
		})
		tables = append(tables, strings.Join(lines, ""))
	}
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// withoutOwnerTable is a kernel in which no table can belong to a process.
type withoutOwnerTable struct{ *kernelNode }

func (withoutOwnerTable) openOwnerTable([]netip.Addr, uint16) (io.Closer, error) {
	return nil, errors.ErrUnsupported
}

// TestKernelRulesAreChangedByOthers: whatever somebody does to what is ours is put
// right, and what is theirs stays.
func TestKernelRulesAreChangedByOthers(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		before := dumpNode(t)
		s := newSetup(t, dualStack(), nil)
		apply(t, s)
		applied := dumpNode(t)
		jump := func(verb string) []string {
			return []string{"iptables", "-w", "-t", "raw", verb, "PREROUTING", "-m", "comment", "--comment", jumpText + " (" + s.rules.mark() + ")", "-j", "NODENS-PREROUTING"}
		}
		for _, c := range []struct {
			name string
			do   [][]string
			want uint64
		}{
			{"nothing", nil, 0},
			{"an address", [][]string{{"ip", "addr", "del", "fd00::a/128", "dev", addressLink(t, s.Plan().Addresses[1])}}, 1},
			{"a rule", [][]string{{"ip6tables", "-w", "-D", "NODENS-INPUT", "2"}}, 1},
			{"a rule changed", [][]string{{"iptables", "-w", "-t", "nat", "-R", "NODENS-DIVERT", "1", "-p", "udp", "-j", "RETURN"}}, 1},
			{"order of rules", [][]string{
				{"iptables", "-w", "-t", "nat", "-D", "NODENS-DIVERT", "1"},
				{"iptables", "-w", "-t", "nat", "-A", "NODENS-DIVERT", "-p", "udp", "-m", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.5", "-j", "DNAT", "--to-destination", "10.1.1.1:53"},
			}, 1},
			{"a chain flushed", [][]string{{"iptables", "-w", "-t", "raw", "-F", "NODENS-PREROUTING"}}, 2},
			{"a jump twice more", [][]string{jump("-A"), jump("-I")}, 2},
			{"no jump", [][]string{jump("-D")}, 1},
			{"a jump with a condition", [][]string{{"iptables", "-w", "-I", "INPUT", "-s", "192.0.2.1", "-j", "NODENS-INPUT"}}, 1},
			{"chain and jump gone", [][]string{jump("-D"), {"iptables", "-w", "-t", "raw", "-F", "NODENS-PREROUTING"}, {"iptables", "-w", "-t", "raw", "-X", "NODENS-PREROUTING"}}, 3},
		} {
			start, began := s.Stats().Repairs, time.Now()
			for _, words := range c.do {
				run(t, words...)
			}
			s.recheck(t.Context())
			if diff := cmp.Diff(applied, dumpNode(t)); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", c.name, diff)
			}
			if got := s.Stats().Repairs - start; got != c.want {
				t.Errorf("%s: %d repairs, want %d", c.name, got, c.want)
			}
			if last := s.Stats().RepairedAt; last.Before(began) != (c.want == 0) {
				t.Errorf("%s: repaired at %v, began at %v", c.name, last, began)
			}
		}
		if got := totalErrors(s); got != 0 {
			t.Errorf("%d errors", got)
		}
		check.NoError(t, s.Teardown(0, nil))
		check.Equal(t, before, dumpNode(t), "teardown")
	})
}

// TestKernelRulesAreFlushed: nothing of ours is left by `iptables -F` and `-X` of all
// tables; what is ours comes back, what was others' does not.
func TestKernelRulesAreFlushed(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		s := newSetup(t, dualStack(), nil)
		apply(t, s)
		applied := dumpNode(t)
		for range 2 {
			for _, tool := range []string{"iptables", "ip6tables"} {
				for _, table := range []string{"filter", "nat", "raw"} {
					run(t, tool, "-w", "-t", table, "-F")
					run(t, tool, "-w", "-t", table, "-X")
				}
			}
			s.recheck(t.Context())
			if diff := cmp.Diff(applied, dumpNode(t)); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
		if got := s.Stats(); !got.FailOpen || got.Diversion != 3 {
			t.Errorf("%+v", got)
		}
	})
}

// TestKernelRulesOfNodeLocalDNSCache: its rules for our addresses go once ours stand,
// whether the same build of iptables has made them or the other; for other addresses
// they stay.
func TestKernelRulesOfNodeLocalDNSCache(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		before := dumpNode(t)
		programs := []string{"iptables", "ip6tables"}
		for _, b := range iptablesModes {
			if _, err := exec.LookPath("iptables-" + b.name); err == nil {
				programs = append(programs, "iptables-"+b.name)
			}
		}
		for _, program := range programs {
			local := dualStack().Addresses[0].String()
			if program == "ip6tables" {
				local = dualStack().Addresses[1].String()
			}
			for _, proto := range []string{"tcp", "udp"} {
				for _, r := range []string{
					"raw PREROUTING -d %s --dport 53 -j NOTRACK", "raw OUTPUT -s %s --sport 53 -j NOTRACK",
					"raw OUTPUT -d %s --dport 53 -j NOTRACK", "raw OUTPUT -d %s --dport 8080 -j NOTRACK",
					"raw OUTPUT -s %s --sport 8080 -j NOTRACK", "filter INPUT -d %s --dport 53 -j ACCEPT",
					"filter OUTPUT -s %s --sport 53 -j ACCEPT",
				} {
					words := strings.Fields(fmt.Sprintf(r, local))
					text := "NodeLocal DNS Cache: skip conntrack"
					if words[0] == "filter" {
						text = "NodeLocal DNS Cache: allow DNS traffic"
					}
					run(t, append([]string{program, "-w", "-t", words[0], "-I", words[1], "-p", proto, "-m", "comment", "--comment", text}, words[2:]...)...)
				}
			}
		}
		s := newSetup(t, dualStack(), nil)
		apply(t, s)
		for _, program := range programs {
			saved := run(t, program+"-save")
			if strings.Contains(saved, `-d `+dualStack().Addresses[0].String()) && strings.Contains(saved, "NodeLocal DNS Cache: skip") {
				t.Errorf("rules are left:\n%s", saved)
			}
		}
		apply(t, s)
		if got := s.Stats().Repairs; got != 0 {
			t.Errorf("a start counts %d repairs", got)
		}
		check.NoError(t, s.Teardown(0, nil))
		check.Equal(t, before, dumpNode(t), "before and after")
	})
}

// TestKernelTwoAgents: two at once, as in a hand-over, end with every rule once, and one
// that comes behind another changes nothing.
func TestKernelTwoAgents(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		before := dumpNode(t)
		first := newSetup(t, dualStack(), nil)
		apply(t, first)
		want := dumpNode(t)
		second := newSetup(t, dualStack(), nil)
		apply(t, second)
		check.Equal(t, want, dumpNode(t), "the second agent")
		for range soak.Choose(1, 3) {
			for _, tool := range []string{"iptables", "ip6tables"} {
				run(t, tool, "-w", "-t", "raw", "-F", "PREROUTING")
				run(t, tool, "-w", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "53", "-j", "NOTRACK")
				run(t, tool, "-w", "-F", "NODENS-INPUT")
			}
			done := make(chan struct{})
			go func() { first.recheck(t.Context()); close(done) }()
			second.recheck(t.Context())
			<-done
			// What one of them had to give up on, or both did, the next interval mends.
			first.recheck(t.Context())
			second.recheck(t.Context())
			if diff := cmp.Diff(want, dumpNode(t)); diff != "" {
				t.Fatalf("both at once (-want +got):\n%s", diff)
			}
		}
		check.NoError(t, second.Teardown(0, nil))
		check.Equal(t, before, dumpNode(t), "teardown")
	})
}
