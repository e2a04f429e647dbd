package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestFailOpen: for each mode of kube-proxy, address, family and protocol, and for queries from a pod and
// from the node: the agent answers while it runs, and port 53 is not tracked; the cluster DNS answers the
// first query after a SIGKILL; the agent answers again when it is back; and a stop leaves the rule sets
// byte for byte as they were before.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	// Without NET_RAW, which the manifest does not grant, the agent can't use iptables' legacy mode.
	for _, name := range append(slices.Clone(testbed.ProxyModes), testbed.ProxyIptablesLegacy+", without NET_RAW") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newNetwork(t)
			way, _, limited := strings.Cut(name, ", ")
			l.addKubeProxy(way)
			if limited {
				l.nodens = l.script("agent", "exec setpriv --bounding-set -all,+net_admin,+net_bind_service --inh-caps -all "+l.nodens+` "$@"`)
			}
			before := l.ruleSets()
			args := l.allAddrArgs()
			p := l.startAgentWith(args...)
			// What happens under way to the agent's upstream is none of this.
			asked := func(when string, from string, askers ...string) {
				t.Helper()
				lost := 0
				for _, ns := range askers {
					for _, server := range testbed.AgentAddrs() {
						for _, over := range []string{"udp", "tcp"} {
							got, err := l.Ask(ns, over, net.JoinHostPort(server, "53"))
							if errors.Is(err, os.ErrDeadlineExceeded) && over == "udp" {
								lost++
								got, err = l.Ask(ns, over, net.JoinHostPort(server, "53"))
							}
							if err != nil || got != from {
								t.Errorf("%s, %s asks %s %s: %q, want %q; %v", when, ns, server, over, got, from, err)
							}
						}
					}
				}
				// A busy machine may lose one datagram. Rules that lose the first query lose those of all askers.
				if lost > 1 {
					t.Errorf("%s, %d queries are lost", when, lost)
				}
			}
			asked("while the agent runs", testbed.FromAgent.String(), l.pod, l.node)
			if got := l.tracked(); got != "" {
				t.Errorf("port 53 is tracked while the agent runs:\n%s", got)
			}
			p.Kill()
			asked("after the kill", testbed.FromCluster.String(), l.pod, l.node)
			if l.tracked() == "" {
				t.Error("port 53 is not tracked without an agent: the check above sees nothing")
			}
			p = l.startAgentWith(args...)
			asked("after the restart", testbed.FromAgent.String(), l.pod, l.node)
			p.Stop()
			if err := p.Err(); err != nil {
				t.Errorf("the agent ended with %v", err)
			}
			check.Equal(t, before, l.ruleSets(), "rule sets differ after the stop")
		})
	}
}

// TestConflictingRules: under load a successor takes over while a program adds a rule after each of its
// writes, as a predecessor of another version does that has other rules. No query is lost, the successor serves,
// and the rules are in place when the program has ended.
func TestConflictingRules(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	args := l.allAddrArgs()
	first := l.startAgentWith(args...)
	rules := l.ruleList()
	stop := l.startLoad(podLoad())
	l.waitForLookups(first, testbed.CacheStats{})

	folder := t.TempDir()
	conflict := filepath.Join(folder, "conflict")
	for _, name := range []string{"iptables-nft", "ip6tables-nft"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		script := fmt.Sprintf(`#!/bin/sh
%[1]s-restore "$@" || exit
if [ -e %[2]s ]; then %[1]s -t raw -A NODENS-PREROUTING -i none0 -j RETURN; fi
exit 0
`, program, conflict)
		for _, link := range []string{name + "-restore", strings.TrimSuffix(name, "-nft") + "-restore"} {
			check.NoError(t, os.WriteFile(filepath.Join(folder, link), []byte(script), 0o700))
		}
	}
	check.NoError(t, os.WriteFile(conflict, nil, 0o600))
	next := l.start(l.node, []string{"PATH=" + folder + ":" + os.Getenv("PATH")}, args...)
	next.Must(t, "the successor to serve", testbed.LogContains(next, "msg=serving"))
	check.NoError(t, os.Remove(conflict))
	if log := next.Tail(); !strings.Contains(log, "another program changes the rules at the same time") {
		t.Errorf("the successor noticed no conflict; it wrote:\n%s", log)
	}
	next.Must(t, "the rules", func(context.Context) error {
		if diff := cmp.Diff(rules, l.ruleList()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	l.waitForLookups(next, testbed.CacheStats{})
	if all := stop().All(); all.Asked == 0 || all.Local != all.Asked {
		t.Errorf("%+v", all)
	}
	l.wantOwner(next)
}

// allAddrArgs returns the arguments of an agent at all four addresses, with a handover folder.
func (l *network) allAddrArgs(more ...string) []string {
	l.t.Helper()
	args, err := l.AgentArgs(testbed.AgentAddrs(), append([]string{"-handover-dir", l.handoverDir(), "-handover-compare=0"}, more...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return args
}

// handoverDir returns the agents' handover folder. It is not below the test's folder, because a socket's
// path has at most 107 bytes.
func (l *network) handoverDir() string {
	l.t.Helper()
	if l.handoverPath == "" {
		dir, err := os.MkdirTemp("", "nodens-")
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { os.RemoveAll(dir) })
		l.handoverPath = dir
	}
	return l.handoverPath
}

// addKubeProxy adds kube-proxy's rules to the node, and all tables and built-in chains that the agent may
// use: the first rule creates them, and nothing deletes them.
func (l *network) addKubeProxy(way string) {
	l.t.Helper()
	for _, tool := range iptablesTools {
		for _, hook := range []string{"raw PREROUTING", "raw OUTPUT", "filter INPUT", "filter OUTPUT", "nat PREROUTING", "nat OUTPUT", "nat POSTROUTING"} {
			table, chain, _ := strings.Cut(hook, " ")
			for _, how := range []string{"-A", "-D"} {
				l.in(l.node, tool, "-w", "-t", table, how, chain, "-p", "udp", "--dport", "9", "-j", "ACCEPT")
			}
		}
	}
	if err := l.KubeProxy(way); err != nil {
		l.t.Fatal(err)
	}
}

// iptablesTools has the programs of iptables for both modes and families.
var iptablesTools = []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}

// ruleSets returns all rules of the node's kernel, without counters.
func (l *network) ruleSets() string {
	l.t.Helper()
	var b strings.Builder
	for _, tool := range iptablesTools {
		for line := range strings.Lines(l.in(l.node, tool+"-save")) {
			if strings.HasPrefix(line, "#") {
				continue // the time, and a warning about tables of the other mode
			}
			if chain, _, ok := strings.Cut(line, " ["); ok && strings.HasPrefix(line, ":") {
				line = chain + "\n"
			}
			fmt.Fprintf(&b, "%s %s", tool, line)
		}
	}
	b.WriteString(l.in(l.node, "nft", "--stateless", "list", "ruleset"))
	return b.String()
}

// TestClosedInput: on a node whose policy for input is DROP, pods reach the agent's DNS port, and no other
// port of its address.
func TestClosedInput(t *testing.T) {
	t.Parallel()
	for _, way := range testbed.ProxyModes {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			l := newNetwork(t)
			l.addKubeProxy(way)
			if way == testbed.ProxyNftables {
				if _, err := l.InWithInput(l.node, `table inet firewall { chain in { type filter hook input priority filter; policy drop;
	iif lo accept; ct state established,related accept; meta l4proto ipv6-icmp accept; }; }`, "nft", "-f", "-"); err != nil {
					t.Fatal(err)
				}
			} else {
				for _, tool := range []string{way, "ip6" + strings.TrimPrefix(way, "ip")} {
					l.in(l.node, tool, "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
					l.in(l.node, tool, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
					l.in(l.node, tool, "-w", "-P", "INPUT", "DROP")
				}
				l.in(l.node, "ip6"+strings.TrimPrefix(way, "ip"), "-w", "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
			}
			before := l.ruleSets()
			p := l.startAgentWith(l.allAddrArgs()...)
			for _, server := range testbed.AgentAddrs() {
				for _, over := range []string{"udp", "tcp"} {
					if got, err := l.Ask(l.pod, over, net.JoinHostPort(server, "53")); err != nil || got != testbed.FromAgent.String() {
						t.Errorf("%s %s: %q, %v", server, over, got, err)
					}
				}
			}
			l.checkOutsideHost()
			if out, err := l.In(l.pod, "curl", "-s", "--max-time", "1", "http://"+net.JoinHostPort(local4, "8080")+"/health"); err == nil {
				t.Errorf("the policy lets a pod in at another port: %q", out)
			}
			p.Stop()
			check.Equal(t, before, l.ruleSets(), "rule sets differ after the stop")
		})
	}
}

// checkOutsideHost sends queries by way of the node from the host behind its default routes: the agent
// does not answer, and kube-proxy still sends queries for a Service to the cluster DNS.
func (l *network) checkOutsideHost() {
	l.t.Helper()
	for server, want := range map[string]string{
		local4: "", local6: "",
		testbed.Service4: testbed.FromCluster.String(), testbed.Service6: testbed.FromCluster.String(),
	} {
		for _, over := range []string{"+notcp", "+tcp"} {
			got, err := l.dig(l.upstream, "@"+server, over, "+time=1", "who."+testbed.Zone)
			if (err == nil) != (want != "") || err == nil && got != want {
				l.t.Errorf("a host outside the node asks %s %s: %q, %v; want %q", server, over, got, err, want)
			}
		}
	}
}

// TestNoNetfilter: with -netfilter none the agent answers at its addresses and changes no rules.
func TestNoNetfilter(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	before := l.ruleSets()
	l.startAgentWith(l.agentArgs("-netfilter", "none")...)
	if got, err := l.dig(l.pod, "@"+local4, "who."+testbed.Zone); err != nil || got != testbed.FromAgent.String() {
		t.Errorf("%q, %v", got, err)
	}
	if diff := cmp.Diff(before, l.ruleSets()); diff != "" {
		t.Errorf("rule sets differ (-before +during):\n%s", diff)
	}
}
