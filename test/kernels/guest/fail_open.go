package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// failOpen tries the rules beside kube-proxy in a mode. The agent writes them and restores what is
// missing; the cluster DNS answers once the agent is killed; they stay when it stops, and nodens
// cleanup removes them.
func failOpen(mode string) func(n *node) (string, error) {
	return func(n *node) (string, error) {
		if err := n.KubeProxy(mode); err != nil {
			return n.withoutProxy(mode, err)
		}
		p, written, cell, err := n.keepsRules(mode)
		if err != nil || cell != yes {
			return cell, err
		}
		p.Kill()
		if err := n.asked("after a kill", testbed.FromCluster.String(), n.Pod); err != nil {
			return "", err
		}
		return yes, n.cleaned(mode, written)
	}
}

// keepsRules starts an agent beside kube-proxy in a mode, which must write rules that fail open, and restore them. It returns
// the agent, the rules, and the cell of the table.
func (n *node) keepsRules(mode string) (p *peer.Process, written, cell string, err error) {
	p, err = n.start(flagsOf(mode)...)
	if err != nil {
		return nil, "", "", err
	}
	if log := p.Tail(); !strings.Contains(log, "failopen=true") {
		cell, err = refused(log, "rules do not fail open")
		return p, "", cell, err
	}
	written, err = n.ourRules(mode)
	if err != nil || written == "" {
		return p, "", "", fmt.Errorf("the agent has written no rules in this mode: %w", err)
	}
	err = errors.Join(
		n.asked("with an agent", testbed.FromAgent.String(), n.Pod, n.Node),
		n.restored(mode, written),
	)
	return p, written, yes, err
}

// flagsOf are the flags of an agent with that kube-proxy. The programs of iptables are out of reach of the
// one that needs none.
func flagsOf(mode string) []string {
	if mode == testbed.ProxyNftables {
		return []string{"-skipteardown", "-netfilter=nftables"}
	}
	return []string{"-skipteardown", "-netfilter=iptables"}
}

// withoutProxy shows what the agent says where iptables can't have kube-proxy's rules.
func (n *node) withoutProxy(mode string, why error) (string, error) {
	if mode != testbed.ProxyIptablesLegacy {
		return "", why
	}
	args, err := n.args(flagsOf(mode)...)
	if err != nil {
		return "", err
	}
	p, err := n.Spawn(n.Node, []string{"PATH=/legacy:/usr/bin"}, append([]string{n.Nodens}, args...)...)
	if err != nil {
		return "", err
	}
	if err := p.Await(context.Background(), "the agent to serve", testbed.LogContains(p, "msg=serving")); err == nil {
		return "", fmt.Errorf("the agent serves where kube-proxy has no rules: %w", why)
	}
	return refused(p.Tail(), "iptables")
}

// ourRules returns the agent's rules and chains, except owner tables, which have random names.
func (n *node) ourRules(mode string) (string, error) {
	commands := [][]string{{"nft", "--stateless", "list", "ruleset"}}
	if mode == testbed.ProxyIptablesLegacy {
		commands = [][]string{{"iptables-legacy-save"}, {"ip6tables-legacy-save"}}
	}
	var ours strings.Builder
	for _, c := range commands {
		out, err := n.In(n.Node, c...)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " [") // counters of a chain
			if strings.Contains(strings.ToLower(line), "nodens") && !strings.Contains(line, "nodens-host-") {
				ours.WriteString(line + "\n")
			}
		}
	}
	return ours.String(), nil
}

// restored removes rules of the agent and waits until they are back.
func (n *node) restored(mode, written string) error {
	damage := []string{mode, "-w", "-t", "raw", "-D", "PREROUTING", "1"}
	if mode == testbed.ProxyNftables {
		damage = []string{"nft", "delete", "table", "inet", "nodens"}
	}
	if _, err := n.In(n.Node, damage...); err != nil {
		return err
	}
	return peer.Await(context.Background(), "the rules to be restored", func(context.Context) error {
		return n.haveRules(mode, written)
	})
}

func (n *node) haveRules(mode, want string) error {
	got, err := n.ourRules(mode)
	if err == nil && got != want {
		err = fmt.Errorf("the rules are\n%s, want\n%s", got, want)
	}
	return err
}

// cleaned starts another agent, stops it, and removes its rules.
func (n *node) cleaned(mode, written string) error {
	p, err := n.start(flagsOf(mode)...)
	if err != nil {
		return err
	}
	if err := n.asked("after the restart", testbed.FromAgent.String(), n.Pod, n.Node); err != nil {
		return err
	}
	p.Stop()
	if err := errors.Join(p.Err(), n.haveRules(mode, written)); err != nil {
		return err
	}
	if err := n.asked("after a stop", testbed.FromCluster.String(), n.Pod); err != nil {
		return err
	}
	if _, err := n.In(n.Node, n.Nodens, "cleanup", "-handover-dir="+n.Dir+"/h"); err != nil {
		return err
	}
	if out, err := n.In(n.Node, "ip", "-oneline", "address"); err != nil || strings.Contains(out, testbed.Local4) {
		return fmt.Errorf("cleanup leaves the address: %s; %w", out, err)
	}
	return n.haveRules(mode, "")
}

// ownerTable: processes of the node get answers of the cluster DNS once the agent is killed.
func ownerTable(n *node) (string, error) {
	if err := n.KubeProxy(testbed.ProxyNftables); err != nil {
		return "", err
	}
	p, err := n.start()
	if err != nil {
		return "", err
	}
	if log := p.Tail(); strings.Contains(log, "no owner table") {
		return refused(log, "no owner table")
	}
	if err := n.asked("with an agent", testbed.FromAgent.String(), n.Node); err != nil {
		return "", err
	}
	p.Kill()
	return yes, n.asked("after a kill", testbed.FromCluster.String(), n.Node)
}

// handOver: an agent takes over from another one, and no query is lost, nor a connection.
func handOver(n *node) (string, error) {
	first, err := n.start()
	if err != nil {
		return "", err
	}
	asking := n.ask()
	if err := asking.more(); err != nil {
		return "", err
	}
	if _, err := n.start(); err != nil {
		return "", err
	}
	if err := first.Err(); err != nil {
		return "", fmt.Errorf("the first agent: %w", err)
	}
	if err := asking.more(); err != nil {
		return "", err
	}
	return yes, asking.stop()
}

// askers ask all the time, over UDP and TCP, and over a connection that stays open.
type askers struct {
	answered atomic.Int64
	lost     atomic.Pointer[error]
	over     chan struct{}
	wg       sync.WaitGroup
}

func (n *node) ask() *askers {
	a := &askers{over: make(chan struct{})}
	const server = testbed.Local4 + ":53"
	probe := func(network string) func() error {
		answers := n.Answers(n.Pod, testbed.FromAgent, network, server)
		return func() error { return answers(context.Background()) }
	}
	for _, try := range []func() error{probe("udp"), probe("tcp"), n.longConnection(server)} {
		a.wg.Go(func() { a.loop(try) })
	}
	return a
}

// longConnection returns a function that sends a query over a connection that it opens once.
func (n *node) longConnection(server string) func() error {
	var conn *dns.Conn
	return func() error {
		if conn == nil {
			c, err := testbed.Dial(n.Pod, "tcp", server)
			if err != nil {
				return err
			}
			conn = &dns.Conn{Conn: c}
			n.Cleanup(func() { c.Close() })
		}
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion("long."+testbed.Zone+".", dns.TypeA)); err != nil {
			return fmt.Errorf("over the open connection: %w", err)
		}
		m, err := conn.ReadMsg()
		if err == nil && len(m.Answer) != 1 {
			err = fmt.Errorf("the answer over the open connection is %s", dns.RcodeToString[m.Rcode])
		}
		return err
	}
}

func (a *askers) loop(try func() error) {
	for {
		select {
		case <-a.over:
			return
		default:
		}
		if err := try(); err != nil {
			a.lost.CompareAndSwap(nil, &err)
			return
		}
		a.answered.Add(1)
	}
}

// more waits for some more answers.
func (a *askers) more() error {
	const some = 100
	from := a.answered.Load()
	return peer.Await(context.Background(), "answers", func(context.Context) error {
		if got := a.answered.Load() - from; got < some && a.lost.Load() == nil {
			return fmt.Errorf("%d answers", got)
		}
		return nil
	})
}

// stop ends the askers, and returns the first error of a query.
func (a *askers) stop() error {
	close(a.over)
	a.wg.Wait()
	if err := a.lost.Load(); err != nil {
		return fmt.Errorf("a query was lost: %w", *err)
	}
	return nil
}
