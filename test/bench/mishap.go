package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/node/testbed"
)

// mishap is something that befalls an agent.
type mishap struct {
	name, what string
	// fails is a program that it can't befall.
	fails string
	run   func(ctx context.Context, s *stand, h *harm) error
}

// The mishaps' names.
const (
	upgraded     = "upgrade"
	upgradedLong = "twenty upgrades in a row"
	restarted    = "stop and start"
	killed       = "kill -9"
	starved      = "out of memory"
	crashed      = "crash"
	halted       = "hang for five seconds"
	filled       = "no room in the hand-over folder"
	spoilt       = "broken saved cache"
	flushed      = "all rules flushed"
	unlinked     = "link deleted"
)

// mishaps are all of them.
var mishaps = []mishap{
	{name: upgraded, run: handOver, what: "Nodens: another agent takes over from the one that runs, which then gets SIGTERM, as with maxSurge 1. " +
		"CoreDNS: SIGTERM, NodeLocal DNSCache's teardown of link and rules, and a start after two seconds, as with maxUnavailable."},
	{name: upgradedLong, run: handOverLong, fails: "coredns", what: "The same twenty times, one after the other."},
	{name: restarted, run: func(ctx context.Context, s *stand, h *harm) error { return s.restart(ctx, h) },
		what: "SIGTERM without a successor, and a start after two seconds. Nodens runs with -skipteardown, as its manifest has it."},
	{name: killed, run: signalled(syscall.SIGKILL), what: "SIGKILL, and a start after two seconds."},
	{name: starved, run: starve, what: "The kernel's OOM killer ends the process, whose control group has no memory left; a start after two seconds."},
	{name: crashed, run: signalled(syscall.SIGABRT), what: "SIGABRT, by which a Go program ends as it does after an error that nothing recovers from; a start after two seconds."},
	{name: halted, run: halt, what: "SIGSTOP, and SIGCONT five seconds later: a process that hangs with its sockets open. Nobody restarts it so soon: liveness takes longer to notice."},
	{name: filled, run: choke, fails: "coredns", what: "The file system of -handover-dir is full: an upgrade, and then a stop and a start."},
	{name: spoilt, run: spoil, fails: "coredns", what: "The agent stops, its saved cache is overwritten with noise, and it starts after two seconds."},
	{name: flushed, run: flush, what: "`iptables -F` in all tables and both families, or `nft flush ruleset`; kube-proxy's rules go as well, and don't come back."},
	{name: unlinked, run: unlink, what: "`ip link delete` of the link with the addresses. NodeLocal DNSCache looks after it every minute, which is later than the end of this. " +
		"Where the kernel can't make nodens' link, the addresses are deleted from the loopback link, one after the other."},
}

// handOver is one upgrade, with what it does to the cache.
func handOver(ctx context.Context, s *stand, h *harm) error {
	then, err := s.CacheStats()
	if err != nil {
		return err
	}
	before, err := s.over(ctx, then)
	if err != nil {
		return err
	}
	if err := s.upgrade(ctx, h); err != nil {
		return err
	}
	// The next process counts from zero.
	after, err := s.over(ctx, testbed.CacheStats{})
	h.hits = max(h.hits, math.Abs(after.Ratio()-before.Ratio()))
	return err
}

// upgradesInARow is what the agent has to stand.
const upgradesInARow = 20

func handOverLong(ctx context.Context, s *stand, h *harm) error {
	for range s.upgrades {
		if err := handOver(ctx, s, h); err != nil {
			return err
		}
	}
	return nil
}

// signalled is the end of a process by a signal that it can't handle.
func signalled(sig syscall.Signal) func(context.Context, *stand, *harm) error {
	return func(ctx context.Context, s *stand, h *harm) error {
		if err := s.p.Signal(sig); err != nil {
			return err
		}
		<-s.p.Done()
		return s.replace(ctx, h)
	}
}

const (
	// plenty is the memory of the control group, several times what a server takes, and
	// stuffing the size of a file system in memory that does not fit into it.
	plenty, stuffing = 256 << 20, 300 << 20
)

// starve fills the control group of the process with the pages of a file in memory. Of
// those in the group the server is the largest, and so the one that goes.
func starve(ctx context.Context, s *stand, h *harm) error {
	g, err := s.NewMemoryGroup(plenty)
	if err != nil {
		return err
	}
	if err := g.Add(s.p.Pid()); err != nil {
		return err
	}
	dir, err := s.Tmpfs("stuffing", stuffing)
	if err != nil {
		return err
	}
	// The shell waits for a line, and so for its place in the group.
	eater, err := s.Spawn(s.Node, nil, "sh", "-c", fmt.Sprintf("until [ -e %s/go ]; do sleep 0.01; done; exec dd if=/dev/zero of=%s/file bs=64k", dir, dir))
	if err != nil {
		return err
	}
	defer eater.Kill()
	if err := g.Add(eater.Pid()); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		return err
	}
	select {
	case <-s.p.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	eater.Kill()
	return s.replace(ctx, h)
}

// halting is how long the process hangs.
const halting = 5 * time.Second

func halt(ctx context.Context, s *stand, _ *harm) error {
	if err := s.p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := wait(ctx, halting)
	if stopped := s.p.Signal(syscall.SIGCONT); stopped != nil {
		return stopped
	}
	return err
}

func choke(ctx context.Context, s *stand, h *harm) error {
	if err := testbed.FillFilesystem(s.estate); err != nil {
		return err
	}
	if err := handOver(ctx, s, h); err != nil {
		return err
	}
	return s.restart(ctx, h)
}

func spoil(ctx context.Context, s *stand, h *harm) error {
	if err := s.stop(); err != nil {
		return err
	}
	if info, err := os.Stat(s.saved()); err != nil || info.Size() == 0 {
		return fmt.Errorf("the agent has saved no cache: %w", err)
	}
	if err := os.WriteFile(s.saved(), make([]byte, 1<<16), 0o600); err != nil {
		return err
	}
	return s.replace(ctx, h)
}

func flush(_ context.Context, s *stand, _ *harm) error {
	if s.way == testbed.ProxyNftables {
		_, err := s.In(s.Node, "nft", "flush", "ruleset")
		return err
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			if _, err := s.In(s.Node, tool, "-w", "-t", table, "-F"); err != nil {
				return err
			}
		}
	}
	return nil
}

func unlink(_ context.Context, s *stand, _ *harm) error {
	if s.SetNodeLocalInterface(false) == nil {
		s.around = false
		return nil
	}
	// A kernel without the driver of dummy links has the addresses on the loopback link.
	for _, a := range []string{testbed.Local4 + "/32", testbed.Local6 + "/128", testbed.Service4 + "/32", testbed.Service6 + "/128"} {
		if _, err := s.In(s.Node, "ip", "addr", "delete", a, "dev", "lo"); err != nil {
			return err
		}
	}
	return nil
}
